// The original operations of a found attention as a function of the call's operands.
#pragma once

#include <string>

#include "flashlift/result.h"
#include "llvm/ADT/ArrayRef.h"
#include "stablehlo/lift/lifted.h"

namespace flashlift::stablehlo {

// Adds a private function to the module of `found` with the call's operands and results, and returns its name.
// `operand_types` and `result_types` are the call's. Errors: kUnsupported if the operations read something other than
// the operands.
Result<std::string> add_decomposition(const LiftedAttention& found, llvm::ArrayRef<mlir::Type> operand_types,
                                      llvm::ArrayRef<mlir::Type> result_types);

}  // namespace flashlift::stablehlo
