// The checks of operations that a StableHLO library would make: MLIR knows only their generic form.
#pragma once

#include "flashlift/result.h"
#include "mlir/IR/Operation.h"

namespace flashlift::stablehlo {

// Checks operands, attributes and shapes of one operation, as far as ops.h gives access to them.
Status verify_op(mlir::Operation* op);

}  // namespace flashlift::stablehlo
