// Sums over the values' depth of the output times its gradient. Hand-written backward passes use them instead of the
// sum of probabilities times their gradient.
#pragma once

#include <optional>

#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

// Returns c if the formula is c * x * y, where only x and y depend on the index variable `atom`: the factor c of sum_d
// c x_d y_d = c sum_d x_d y_d. Ignores roundings to 16 bits if `through_rounding`. Nothing if the formula is not such a
// product.
std::optional<SymId> coefficient_of(SymArena& arena, SymId formula, SymId x, SymId y, int atom, bool through_rounding);

}  // namespace flashlift::stablehlo
