// Sums over the values' depth of the output times its gradient, as hand-written backward passes have them in place of
// the sum of probabilities times their gradient.
#pragma once

#include <optional>

#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

// c if the formula is c * x * y, where c does not depend on the index variable `atom` and x * y is what does: of
// sum_d c x_d y_d it is what stands before sum_d x_d y_d. Roundings to 16 bits are passed over if `through_rounding`.
// Nothing if the formula is no such product.
std::optional<SymId> coefficient_of(SymArena& arena, SymId formula, SymId x, SymId y, int atom, bool through_rounding);

}  // namespace flashlift::stablehlo
