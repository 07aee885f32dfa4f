// Changes of what a loop (stablehlo.while) carries.
#pragma once

#include "llvm/ADT/ArrayRef.h"
#include "stablehlo/loop.h"
#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

// Adds carried values that no iteration changes, and replaces the loop. The body has an argument for each of them
// already, in this order after all others.
mlir::Operation* with_invariants(mlir::Operation* loop, mlir::ValueRange starts);

// Removes carried values that nothing but themselves depends on, also of loops in loops.
void remove_unused_carries(Module& module);

// Near a softmax, tensors that a loop carries unchanged, and that depend on constants and smaller tensors of
// integers alone, are computed in its body instead: JAX computes masks before the loop, and a mask of unknown numbers
// does not show which keys it excludes.
void move_masks_into_loops(Module& module);

}  // namespace flashlift::stablehlo
