// An operation's attributes from VHLO's to StableHLO's.
#pragma once

#include "mlir/IR/OperationSupport.h"
#include "stablehlo/bytecode/stream.h"
#include "stablehlo/bytecode/vhlo.h"

namespace flashlift::stablehlo::bytecode {

// `attributes` has VHLO's, by name, with builtin values. Replaces them by StableHLO's own; what is left out there by
// default is left out. Sets the failure for values of a wrong kind.
void from_vhlo(const VhloOp& op, mlir::NamedAttrList& attributes, mlir::MLIRContext* context, Failure& failure);

}  // namespace flashlift::stablehlo::bytecode
