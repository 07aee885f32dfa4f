// Logarithms of sums of a few exponentials, as libraries write them: logaddexp, softplus, logsumexp of stacked rows.
#pragma once

#include <vector>

#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

// The x_i if the formula is log(sum e^(x_i)) for all x_i that are numbers; empty if it is no such formula. The formula
// may subtract the largest x_i first.
std::vector<SymId> logits_of_log_sum(SymArena& arena, SymId formula);

}  // namespace flashlift::stablehlo
