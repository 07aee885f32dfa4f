// The derivative of a problem's score_mod, for backends to compile.
#pragma once

#include <optional>
#include <vector>

#include "flashlift/problem.h"
#include "score/derivative.h"

namespace flashlift::problem {

// wants_gradient: for each of problem.captures, whether its gradient is requested; false for those beyond its end.
// Nothing without a score_mod.
std::optional<score::Derivative> differentiate(const Problem& problem, const std::vector<bool>& wants_gradient);

}  // namespace flashlift::problem
