// Passes that simplify a module before the search for attention. They change the given module: pass a Module::clone()
// to keep the original.
#pragma once

#include <functional>

#include "flashlift/result.h"
#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

inline constexpr size_t kMaxParts = 4'000'000;  // operations, operands and results of a module after inlining
inline constexpr int kMaxCallDepth = 256;       // of calls and of regions after inlining

// Replaces every call of a function of the module by the function's body, also inside regions and other functions.
// Locations are those of the body. Errors: kUnsupported for recursion and beyond the limits above; part of the module
// may then be changed.
Status inline_calls(Module& module);

// Replaces each stablehlo.composite for which `wanted` is true (all, if it is empty) by the body of its decomposition,
// also inside decompositions. `on_copy` is called with each copied operation and the composite that it replaces; copies
// of copies keep their attributes. Errors: as inline_calls; kInvalidArgument for a decomposition that does not exist or
// has other types.
Status inline_composites(Module& module, const std::function<bool(mlir::Operation*)>& wanted = {},
                         const std::function<void(mlir::Operation* composite, mlir::Operation* copy)>& on_copy = {});

// Removes operations whose results are unused, and private functions that are never named.
void remove_dead_code(Module& module);

}  // namespace flashlift::stablehlo
