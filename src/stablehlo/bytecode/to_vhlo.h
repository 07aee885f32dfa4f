// Converts an operation's attributes from StableHLO to VHLO.
#pragma once

#include <vector>

#include "flashlift/result.h"
#include "mlir/IR/Operation.h"
#include "stablehlo/bytecode/vhlo.h"

namespace flashlift::stablehlo::bytecode {

// Its own attributes in the newest version of VHLO's operation, with defaults written out. Values are still builtin or
// text; VhloWriter (write.cpp) converts them to VHLO's form.
struct VhloForm {
  const VhloOp* newest = nullptr;
  std::vector<mlir::Attribute> attributes;  // one for each of newest->attributes
  bool is_plain = true;                     // apart from attributes, nothing requires a later version
};

// Whether VHLO has this operation. It has those of stablehlo, and functions.
bool has_vhlo_form(mlir::Operation* op);
// Errors: kInvalidArgument for attributes that are missing or of a wrong kind.
Result<VhloForm> to_vhlo(mlir::Operation* op);
// Whether this version of the operation can express the form.
bool fits(const VhloOp& op, const VhloForm& form);
// The oldest version that can.
const VhloOp& oldest_that_fits(const VhloForm& form);

}  // namespace flashlift::stablehlo::bytecode
