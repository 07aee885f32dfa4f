// Finding attention in a module: two matrix products with a softmax over keys between them, proved from what the
// operations compute. See docs/design.md, "Lifting".
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "stablehlo/algebra/reason.h"
#include "stablehlo/lift/lifted.h"
#include "stablehlo/lift/work.h"
#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

// Looks at a product as the second one of an attention. kNoCandidate: it does not
// look like attention at all (no summed exponential, or no product before it).
// gradients: where the module holds the attention's backward pass too, that is lifted with it. `work` is for all
// products of a module: once it is spent, an error says so.
Outcome<LiftedAttention> lift_attention(mlir::Operation* second_product, bool gradients, Work& work);

// The same attention with its gradient, where the forward pass alone was found and more of the gradient is known since.
Outcome<LiftedAttention> lift_with_gradient(const LiftedAttention& forward, Work& work);

// Whether a product flows into an exponential from which a number of its row is subtracted, and which nobody sums: such
// scores are normalised by a log-sum-exp that is known before.
bool is_normalised_by_row(mlir::Operation* product);

// Whether a value flows into an exponential that is summed, or comes from one, with no product between: scores,
// probabilities, statistics of their rows.
bool is_near_softmax(mlir::Value value);

}  // namespace flashlift::stablehlo
