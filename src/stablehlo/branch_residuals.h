// Branches that compute residuals of attention again, instead of reading what an earlier choice has returned.
//
// The gradient of JAX's lax.cond and lax.switch is two choices (stablehlo.case or stablehlo.if) on the same index. Each
// branch of the first one returns what the backward pass needs, among it the probabilities, and the same branch of the
// second one reads it. Neither branch holds an attention with its gradient. This pass lets the branches of the second
// choice compute scores, probabilities, row statistics and masks again.
//
// Why the computed value is the returned one: both choices have the same index, so that branch i of the second one only
// runs if branch i of the first one has run. There, a result is what branch i of the first choice returns. The value is
// computed by pure operations from values outside of the first choice, which the second one sees, too, and from
// other values that branch i of the first one returns.
//
// If the choices are in two loops, or in branches of two outer choices, they are not in one block. What the second one
// reads was then stored by the loop or returned by the outer branch. For these, the first choice becomes two: one that
// returns all else, and one behind it that only computes scores, probabilities, row statistics and masks. Loops
// (loop_residuals.h) and outer branches compute the latter again like any other operation, next to the choice that
// reads it. What is also used otherwise, such as the output that the next layer reads, stays in the first one: computed
// again outside of the choice that reads the scores, it would be an attention of its own.
#pragma once

#include <cstdint>
#include <set>

#include "mlir/IR/Operation.h"

namespace flashlift::stablehlo {

// Whether an operation is a choice whose branches read results of an earlier one on the same index.
bool reads_earlier_choice(mlir::Operation* op);

// Lets the branches of a choice compute again what they read of attention, but not those that `except` names by their
// numbers, of `first` on. Returns whether anything has changed. The earlier choices may have been replaced.
bool compute_branch_residuals_again(mlir::Operation* backward, int64_t first, const std::set<int64_t>& except);

// Moves what loops or outer branches store of attention out of a choice, into one of its own behind it. `first` and
// `except` as above. Returns whether anything has changed. The choice may have been replaced.
bool split_residuals_off(mlir::Operation* choice, int64_t first, const std::set<int64_t>& except);

// Whether a value is a result of such a choice.
bool is_split_off(mlir::Value value);

// Forgets which choices these are.
void forget_split_off(mlir::Operation* module);

}  // namespace flashlift::stablehlo
