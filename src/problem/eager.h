// Unfused attention in the problem's own precision: what a framework without Flashlift computes, and the measure that
// Flashlift's errors are held against.
#pragma once

#include <vector>

#include "flashlift/problem.h"

namespace flashlift::problem {

// Scores and probabilities are rounded to the problem's dtype where a framework would store them as tensors; mods and
// softmax run in f32. [batch, q_heads, q_len, value_dim], dense, rounded to the output's dtype.
// Errors: as run_oracle.
Result<std::vector<float>> run_eager(const Problem& problem, const AttentionArguments& arguments);

}  // namespace flashlift::problem
