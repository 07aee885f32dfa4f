// Limits on attributes, types and locations of a module that was read.
#pragma once

#include "flashlift/result.h"
#include "mlir/IR/BuiltinOps.h"

namespace flashlift::stablehlo {

inline constexpr int kMaxAttributeDepth = 1000;
inline constexpr int64_t kMaxAttributeParts = int64_t{1} << 20;  // of one attribute, written out
inline constexpr int64_t kMaxAllParts = int64_t{1} << 28;        // of all attributes of a module, written out
inline constexpr int64_t kMaxDimensions = 64;                    // of a tensor; what checks them is quadratic

// Aliases (#a1 = [#a0, #a0]) nest without brackets, so that a short text can hold an attribute too deep for MLIR's
// recursion or too large ever to be printed. Refuses those, tensors of too many dimensions, and tensors whose number of
// elements does not fit 63 bits. Call it before anything walks the attributes, verifiers included.
Status check_attributes(mlir::ModuleOp module);

}  // namespace flashlift::stablehlo
