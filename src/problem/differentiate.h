// The derivative of a problem's score_mod, as backends compile it.
#pragma once

#include <optional>
#include <vector>

#include "flashlift/problem.h"
#include "score/derivative.h"

namespace flashlift::problem {

// wants_gradient: of which of problem.captures gradients are wanted; those beyond its end are not. Nothing without a
// score_mod.
std::optional<score::Derivative> differentiate(const Problem& problem, const std::vector<bool>& wants_gradient);

}  // namespace flashlift::problem
