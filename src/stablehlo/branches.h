// Removes branches that all compute the same.
#pragma once

#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

// Whether an operation is a `case` or an `if`.
bool is_choice(mlir::Operation* op);

// Replaces each `case` and `if` whose branches are equal, operation by operation, by the operations of one branch.
// jax.export for several platforms puts each product into a `case` on the platform's number.
void merge_equal_branches(Module& module);

}  // namespace flashlift::stablehlo
