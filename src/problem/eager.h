// Unfused attention in the problem's own precision, as a framework without Flashlift computes it. Flashlift's errors
// are measured against its errors.
#pragma once

#include <vector>

#include "flashlift/problem.h"
#include "problem/row_done.h"

namespace flashlift::problem {

struct EagerResult {
  std::vector<float> out;      // [batch, q_heads, q_len, value_dim], dense, rounded to the output's dtype
  std::vector<float> lse;      // [batch, q_heads, q_len]
  std::vector<float> row_max;  // likewise
};

// Scores and probabilities are rounded to the problem's dtype where a framework would store them as tensors; mods and
// softmax run in f32. Errors: as run_oracle.
Result<EagerResult> run_eager(const Problem& problem, const AttentionArguments& arguments,
                              const RowDone& row_done = nullptr);

}  // namespace flashlift::problem
