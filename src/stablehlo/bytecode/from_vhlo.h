// Converts an operation's attributes from VHLO to StableHLO.
#pragma once

#include "mlir/IR/OperationSupport.h"
#include "stablehlo/bytecode/stream.h"
#include "stablehlo/bytecode/vhlo.h"

namespace flashlift::stablehlo::bytecode {

// `attributes` contains VHLO's attributes by name, with builtin values. Replaces them by StableHLO's own, without those
// that have default values. Sets the failure if a value has the wrong kind.
void from_vhlo(const VhloOp& op, mlir::NamedAttrList& attributes, mlir::MLIRContext* context, Failure& failure);

}  // namespace flashlift::stablehlo::bytecode
