// Checks that MLIR cannot do for stablehlo's operations, because they are unregistered.
#pragma once

#include "flashlift/result.h"
#include "mlir/IR/BuiltinOps.h"

namespace flashlift::stablehlo {

// Checks that regions of stablehlo's operations are single blocks in which values are defined before they are used, and
// that operations with accessors in ops.h have the operands, attributes and shapes that these accessors require.
Status verify(mlir::ModuleOp module);

}  // namespace flashlift::stablehlo
