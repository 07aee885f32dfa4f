// Branches that all do the same.
#pragma once

#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

// Puts in place of each `case` and `if` whose branches are equal, operation by operation, one branch's operations.
// jax.export for several platforms writes a `case` on the platform's number around each product.
void merge_equal_branches(Module& module);

}  // namespace flashlift::stablehlo
