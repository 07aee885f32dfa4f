// Limits for attributes, types and locations of a module.
#pragma once

#include "flashlift/result.h"
#include "mlir/IR/BuiltinOps.h"

namespace flashlift::stablehlo {

inline constexpr int kMaxAttributeDepth = 1000;
inline constexpr int64_t kMaxAttributeParts = int64_t{1} << 20;  // of one attribute, expanded
inline constexpr int64_t kMaxAllParts = int64_t{1} << 28;        // of all attributes of a module, expanded
inline constexpr int64_t kMaxDimensions = 64;                    // of a tensor; checks take quadratic time in it

// Aliases (#a1 = [#a0, #a0]) nest without brackets, so that a short text may contain an attribute too deep for MLIR's
// recursion, or too large to print. Refuses these, tensors with too many dimensions, and tensors whose number of
// elements does not fit into 63 bits. Must be called before other code walks the attributes, including verifiers.
Status check_attributes(mlir::ModuleOp module);

}  // namespace flashlift::stablehlo
