// The backward pass of unfused attention in the problem's own precision. The errors of Flashlift's gradients are
// measured against its errors.
#pragma once

#include <vector>

#include "flashlift/problem.h"
#include "problem/oracle_backward.h"

namespace flashlift::problem {

// A gradient, dense in logical order, and for each element the sum of its terms' magnitudes (product_magnitude) before
// they cancel.
struct EagerGradient {
  std::vector<float> values;
  std::vector<double> magnitudes;  // in f64, since a large finite constant of a mask may overflow f32
  GradientParts parts;             // of captured tensors and sinks
};

struct EagerGradients {
  EagerGradient q;
  EagerGradient k;
  EagerGradient v;
  std::vector<EagerGradient> captures;  // as OracleGradients::captures
  EagerGradient sinks;
};

// The automatic derivative of run_eager's maths. Tensors that a framework would store (probabilities, d_out v^T, the
// gradient of q k^T, and the results) are rounded to the problem's dtype; softmax, mods, their derivatives and all sums
// are in f32. It does not read the forward call's results. Errors: as run_oracle_backward.
Result<EagerGradients> run_eager_backward(const Problem& problem, const AttentionArguments& arguments,
                                          const OracleCotangents& cotangents, const RowDone& row_done = nullptr);

}  // namespace flashlift::problem
