// The fp64 oracle: attention as docs/design.md defines it, written to be easy to read. It shares no code with any
// backend.
#pragma once

#include <vector>

#include "flashlift/problem.h"
#include "problem/row_done.h"

namespace flashlift::problem {

struct OracleResult {
  std::vector<double> out;      // [batch, q_heads, q_len, value_dim], dense
  std::vector<double> lse;      // [batch, q_heads, q_len], dense, also if the problem does not request it
  std::vector<double> row_max;  // likewise
};

// Uses the lengths and batch of the arguments, and reads only inputs. Errors: those of verify(problem) and
// verify(problem, arguments).
Result<OracleResult> run_oracle(const Problem& problem, const AttentionArguments& arguments,
                                const RowDone& row_done = nullptr);

}  // namespace flashlift::problem
