// Differentiating score programs: what a backward kernel needs of a score_mod.
#pragma once

#include <cstdint>
#include <vector>

#include "score/simplify.h"

namespace flashlift::score {

// d score / d load: a backward kernel adds dS * weight to the gradient of the captured tensor
// body.nodes[load].payload, at the clamped indices body.nodes[load].operands.
struct LoadDerivative {
  ValueId load;
  ValueId weight;
};

// A program of several results, which share nodes, so that a backend compiles one function for all.
struct Derivative {
  Program body;     // body.result is the score_mod's own result, which backward needs to recompute p
  ValueId d_score;  // f32: d result / d score
  std::vector<LoadDerivative> loads;
};

// Differentiates a score_mod, whose equal loads are one, with respect to its score, and to each load of the captured
// tensors for which wants_gradient (in the order of score_mod->captures; empty: of none) holds. Only float tensors have
// gradients; loads that the result depends on in no differentiable way are left out.
//
// Where there is no derivative, PyTorch's conventions hold: minimum and maximum split evenly between equal operands,
// |x|' is 0 at 0, floor, ceil, round_even, sign, conversions to integers and bit casts give 0, rounding to bf16 and f16
// passes through unchanged, as a change of dtype does. A select passes to the chosen side only, so a score masked by
// -inf passes nothing; where a formula itself is infinite (sqrt at 0), so is the derivative. A backend skips elements
// with p = 0, so that infinite weights of masked ones do not turn into NaN.
Derivative differentiate(const SimplifiedProgram& score_mod, const std::vector<bool>& wants_gradient = {});

}  // namespace flashlift::score
