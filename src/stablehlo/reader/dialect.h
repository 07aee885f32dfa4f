// The dialects stablehlo, chlo and sdy as this project needs them: operations stay unregistered (their attributes lie
// in the property dictionary that the generic form calls <{...}>), a hook reads their pretty form, and attributes and
// types are kept as text in a canonical spelling.
//
// Rejected: registering the operations. It would mean an ODS description of 170 operations and of their attributes to
// keep in step with StableHLO, for a compiler that must let everything it does not know pass through untouched.
#pragma once

#include "mlir/IR/OperationSupport.h"
#include "stablehlo/reader/op_table.h"

namespace mlir {
class DialectRegistry;
}

namespace flashlift::stablehlo {

// stablehlo, chlo and sdy, and the upstream dialects whose pretty form occurs beside them (func, arith, tensor, shape,
// quant).
void register_dialects(mlir::DialectRegistry& registry);

// The kind of an operation of stablehlo, chlo and sdy, otherwise kOther. The lift asks for it at each of its steps: the
// dialects remember the kind of each name, so that names are not compared there.
OpKind kind_of(mlir::OperationName name);

}  // namespace flashlift::stablehlo
