// Derivatives of score programs, which backward kernels compute.
#pragma once

#include <vector>

#include "score/simplify.h"

namespace flashlift::score {

// d score / d load: a backward kernel adds dS * weight to the gradient of the captured tensor
// body.nodes[load].payload, at the clamped indices body.nodes[load].operands.
struct LoadDerivative {
  ValueId load;
  ValueId weight;
  bool selects = false;  // as Derivative::selects, of `weight`
};

// A program with several results, which share nodes, so that a backend compiles one function for all.
struct Derivative {
  Program body;     // body.result is the score_mod's own result, from which the backward pass recomputes p
  ValueId d_score;  // f32: d result / d score
  // Whether d_score depends on a select. Where it is 0 then, a select leaves the score out: its gradient is 0, even if
  // that of the result is NaN or infinite.
  bool selects = false;
  std::vector<LoadDerivative> loads;
};

// Differentiates a score_mod, in which no two loads are equal, with respect to its score and to the loads of those
// captured tensors for which wants_gradient holds (in the order of score_mod->captures; empty: none). Only float
// tensors have gradients. Loads on which the result does not depend differentiably are left out.
//
// Where there is no derivative, PyTorch's conventions hold: minimum and maximum split it evenly between equal operands,
// |x|' is 0 at 0, floor, ceil, round_even, sign, conversions to integers and bit casts give 0, and rounding to bf16 and
// f16 passes it through unchanged, like a change of dtype. A select passes it to the chosen side only, so that a score
// masked by -inf gets none, nor does one that a finite constant replaces. Where a formula itself is infinite (sqrt at
// 0), so is the derivative. A backend skips elements with p = 0, so that infinite weights of masked ones do not become
// NaN.
Derivative differentiate(const SimplifiedProgram& score_mod, const std::vector<bool>& wants_gradient = {});

}  // namespace flashlift::score
