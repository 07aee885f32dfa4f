// The fp64 oracle: attention as docs/design.md defines it, written for reading, sharing no code with any backend.
#pragma once

#include <vector>

#include "flashlift/problem.h"
#include "problem/row_done.h"

namespace flashlift::problem {

struct OracleResult {
  std::vector<double> out;      // [batch, q_heads, q_len, value_dim], dense
  std::vector<double> lse;      // [batch, q_heads, q_len], dense, whether the problem wants it or not
  std::vector<double> row_max;  // likewise
};

// Takes lengths and batch from the arguments. Reads only what is an input.
// Errors: what verify(problem) and verify(problem, arguments) say.
Result<OracleResult> run_oracle(const Problem& problem, const AttentionArguments& arguments,
                                const RowDone& row_done = nullptr);

}  // namespace flashlift::problem
