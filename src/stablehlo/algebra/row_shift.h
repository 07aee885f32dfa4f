// The number that a softmax subtracts from the scores of a row: usually their maximum.
#pragma once

#include "stablehlo/algebra/softmax.h"

namespace flashlift::stablehlo {

// Whether the only number subtracted is the maximum of exactly what is summed: the same keys under the same conditions,
// and only sinks that are summed, too.
bool subtracts_own_maximum(SymArena& arena, const Softmax& softmax);

// Whether the number that is subtracted from a row may be infinite or NaN although its scores are numbers, apart from
// overflow. It cancels only if it is a number.
bool may_be_no_number(SymArena& arena, SymId shift, const Softmax& softmax);

}  // namespace flashlift::stablehlo
