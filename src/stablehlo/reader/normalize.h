// Passes that bring a module into the shape in which attention is looked for. They change the module they are given:
// work on Module::clone() where the original is still wanted.
#pragma once

#include <functional>

#include "flashlift/result.h"
#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

inline constexpr size_t kMaxParts = 4'000'000;  // operations, operands and results of a module after inlining
inline constexpr int kMaxCallDepth = 256;       // of calls and of regions after inlining

// Replaces every call of a function of the module by the function's body, also inside regions and other functions.
// Locations stay those of the body. Errors: kUnsupported for recursion and beyond the limits above; the module is then
// changed in part.
Status inline_calls(Module& module);

// Replaces each stablehlo.composite for which `wanted` is true (all, if it is empty) by its decomposition's body, also
// inside decompositions. `on_copy` is told of each operation copied and of the composite it takes the place of; copies
// of copies keep their attributes. Errors: as inline_calls; kInvalidArgument for a decomposition that does not exist or
// has other types.
Status inline_composites(Module& module, const std::function<bool(mlir::Operation*)>& wanted = {},
                         const std::function<void(mlir::Operation* composite, mlir::Operation* copy)>& on_copy = {});

// Removes operations whose results nobody uses, and private functions that nobody names.
void remove_dead_code(Module& module);

// Lets equal operations on equal operands be one operation (constants, iotas, broadcasts above all), reductions too. An
// operation inside a region may be replaced by one outside.
void merge_equal_operations(Module& module);

}  // namespace flashlift::stablehlo
