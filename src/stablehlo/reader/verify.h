// Checks on a module that MLIR cannot make, stablehlo's operations being unregistered to it.
#pragma once

#include "flashlift/result.h"
#include "mlir/IR/BuiltinOps.h"

namespace flashlift::stablehlo {

// That regions of stablehlo's operations are single blocks in which values are defined before they are used, and that
// the operations which ops.h gives access to have the operands, attributes and shapes that its accessors promise.
Status verify(mlir::ModuleOp module);

}  // namespace flashlift::stablehlo
