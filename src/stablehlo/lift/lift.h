// Finding attention in a module: two matrix products with a softmax over keys between them, proved from what the
// operations compute. See docs/design.md, "Lifting".
#pragma once

#include "stablehlo/algebra/reason.h"
#include "stablehlo/lift/lifted.h"
#include "stablehlo/lift/work.h"

namespace flashlift::stablehlo {

// Tries a product as the second one of an attention. kNoCandidate: it does not look like attention at all (no summed
// exponential, or no product before it). gradients: if the module also contains the attention's backward pass, lift
// both. `work` is shared by all products of a module; once it is spent, the result is an error.
Outcome<LiftedAttention> lift_attention(mlir::Operation* second_product, bool gradients, Work& work);

// The same attention with its gradient, for an attention whose forward pass alone was found before, if more of the
// gradient is known now.
Outcome<LiftedAttention> lift_with_gradient(const LiftedAttention& forward, Work& work);

}  // namespace flashlift::stablehlo
