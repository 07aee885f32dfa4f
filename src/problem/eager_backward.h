// The backward of unfused attention in the problem's own precision: the measure of Flashlift's gradients.
#pragma once

#include <vector>

#include "flashlift/problem.h"
#include "problem/oracle_backward.h"

namespace flashlift::problem {

// A gradient, dense in logical order, and for each element the sum of its terms' magnitudes (product_magnitude), before
// anything cancels.
struct EagerGradient {
  std::vector<float> values;
  std::vector<double> magnitudes;  // f32 may not hold them where a large finite constant masks
  GradientParts parts;             // of captured tensors and sinks
};

struct EagerGradients {
  EagerGradient q;
  EagerGradient k;
  EagerGradient v;
  std::vector<EagerGradient> captures;  // as OracleGradients::captures
  EagerGradient sinks;
};

// What automatic differentiation makes of run_eager's maths: tensors that a framework would store (probabilities,
// d_out v^T, the gradient of q k^T, and the results) are rounded to the problem's dtype; softmax, mods and their
// derivatives run in f32, as do all sums. Nothing of the forward call's results is read.
// Errors: as run_oracle_backward.
Result<EagerGradients> run_eager_backward(const Problem& problem, const AttentionArguments& arguments,
                                          const OracleCotangents& cotangents, const RowDone& row_done = nullptr);

}  // namespace flashlift::problem
