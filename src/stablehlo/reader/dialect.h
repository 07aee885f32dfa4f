// The dialects stablehlo, chlo and sdy as this project needs them: operations stay unregistered (their attributes lie
// in the property dictionary that the generic form calls <{...}>), a hook reads their pretty form, and attributes and
// types are kept as text in a canonical spelling.
//
// Rejected: registering the operations. It would mean an ODS description of 170 operations and of their attributes to
// keep in step with StableHLO, for a compiler that must let everything it does not know pass through untouched.
#pragma once

namespace mlir {
class DialectRegistry;
}

namespace flashlift::stablehlo {

// stablehlo, chlo and sdy, and the upstream dialects whose pretty form occurs beside them (func, arith, tensor, shape,
// quant).
void register_dialects(mlir::DialectRegistry& registry);

}  // namespace flashlift::stablehlo
