// The dialects stablehlo, chlo, sdy and mhlo, as far as this project needs them: operations stay unregistered (their
// attributes are in the property dictionary that the generic form writes as <{...}>), a hook reads their pretty form,
// and attributes and types are kept as text in a canonical form.
//
// Rejected: registering the operations. This would require an ODS description of 170 operations and their attributes
// that follows StableHLO's changes, in a compiler that must pass everything unknown through unchanged.
#pragma once

#include "mlir/IR/OperationSupport.h"
#include "stablehlo/reader/op_table.h"

namespace mlir {
class DialectRegistry;
}

namespace flashlift::stablehlo {

// Registers stablehlo, chlo, sdy and mhlo, and the upstream dialects that modules contain in their pretty form (func,
// arith, tensor, shape, quant).
void register_dialects(mlir::DialectRegistry& registry);

// The kind of an operation of stablehlo, chlo and sdy, otherwise kOther. The lift asks for it at each of its steps: the
// dialects remember the kind of each name, so that names are not compared there.
OpKind kind_of(mlir::OperationName name);

}  // namespace flashlift::stablehlo
