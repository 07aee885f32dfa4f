// VHLO's attributes and types for MLIR's bytecode writer. Each wraps the attribute or type that it stands for.
#pragma once

#include <optional>

#include "mlir/IR/Attributes.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/Types.h"
#include "stablehlo/bytecode/vhlo.h"

namespace flashlift::stablehlo::bytecode {

// The oldest version that can express all of it; nothing if VHLO cannot.
std::optional<Version> version_of(mlir::Type type);
std::optional<Version> version_of(mlir::Attribute attribute);

// Converts to VHLO's form. Only for attributes and types that have a version (version_of), and after load_vhlo.
void load_vhlo(mlir::MLIRContext* context);
mlir::Type wrap(mlir::Type type);
mlir::Attribute wrap(mlir::Attribute attribute);
// Leaves attributes that VHLO cannot express unchanged, also inside lists and dictionaries.
mlir::Attribute wrap_known(mlir::Attribute attribute);

}  // namespace flashlift::stablehlo::bytecode
