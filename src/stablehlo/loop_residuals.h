// Loops that compute residuals of attention again, instead of reading what an earlier loop has stored.
//
// The gradient of a loop over layers, such as jax.lax.scan without jax.checkpoint, is two loops. Each iteration of the
// first one stores what the backward pass needs (JAX's "residuals") in tensors with one entry per iteration, among them
// the probabilities of all layers, and the second loop reads them, last layer first. Neither loop holds an attention
// with its gradient. This pass lets the second loop compute scores, probabilities, row statistics and outputs
// again, from the entries of queries, keys and other tensors that it reads anyway. Its body then is the gradient of one
// layer, and the first loop stores no scores any more.
//
// Why the computed value is the stored one:
// - Both loops have known numbers of iterations, and the indices of both are known in each iteration (loop.h). An entry
//   that iteration i writes, and no other iteration of the loop, is in the tensor after the loop. So a slice that
//   iteration j of the second loop takes is the entry of one iteration i(j); a slice at a place that the first loop
//   does not write, or of another tensor with other i(j), is not changed.
// - Within an iteration, the entry is computed by pure operations from: entries that the second loop also reads with
//   these i(j); values that the loop carries unchanged; values from outside the loop; and what counts iterations, if
//   the second loop can compute the number that it had in iteration i(j). An entry that depends on other carried values
//   is read as before.
// - Every use of such a tensor must be one of these slices. Otherwise the first loop would have to store it anyway, and
//   it is read as before.
#pragma once

#include <cstdint>
#include <set>

#include "mlir/IR/Operation.h"

namespace flashlift::stablehlo {

// Attribute of matrix products that a backward pass computes again: a number, of the backward pass's first one on.
inline constexpr const char* kRepeated = "flashlift.repeated";
inline constexpr int64_t kMostRepeated = int64_t{1} << 20;  // numbers of one backward pass

// Whether an operation is one of attention's two products.
bool is_product_of_attention(mlir::Operation* op);

// Whether a value is one of attention's scores, probabilities, row statistics or outputs, or computed from them.
bool is_of_attention(mlir::Value value);

// Whether scores or probabilities are multiplied by these floats, such as dropout's 0 or 1 / (1 - rate). Only where
// they are computed is it seen that they are a condition times a constant.
bool is_factor_of_scores(mlir::Value value);

// Whether a loop reads the results of another one.
bool reads_earlier_loop(mlir::Operation* op);

// Lets a loop compute again what it reads of attention, but none of the products that `except` names by their numbers,
// of `first` on. Returns the loop, which may have been replaced; null if nothing has changed.
mlir::Operation* compute_residuals_again(mlir::Operation* backward, int64_t first, const std::set<int64_t>& except);

}  // namespace flashlift::stablehlo
