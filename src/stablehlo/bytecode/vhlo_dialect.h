// VHLO's attributes and types for MLIR's bytecode writer: wrappers around what they stand for.
#pragma once

#include <optional>

#include "mlir/IR/Attributes.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/Types.h"
#include "stablehlo/bytecode/vhlo.h"

namespace flashlift::stablehlo::bytecode {

// The oldest version that has all of it; nothing for what VHLO has no form for.
std::optional<Version> version_of(mlir::Type type);
std::optional<Version> version_of(mlir::Attribute attribute);

// Written in VHLO's form. Only for what version_of knows, and after load_vhlo.
void load_vhlo(mlir::MLIRContext* context);
mlir::Type wrap(mlir::Type type);
mlir::Attribute wrap(mlir::Attribute attribute);
// Leaves what VHLO has no form for as it is, also inside lists and dictionaries.
mlir::Attribute wrap_known(mlir::Attribute attribute);

}  // namespace flashlift::stablehlo::bytecode
