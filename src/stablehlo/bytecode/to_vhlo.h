// An operation's attributes from StableHLO's to VHLO's.
#pragma once

#include <vector>

#include "flashlift/result.h"
#include "mlir/IR/Operation.h"
#include "stablehlo/bytecode/vhlo.h"

namespace flashlift::stablehlo::bytecode {

// Its own attributes as VHLO's newest version of the operation has them, defaults written out. Values are still
// builtin or text; VhloEncoding (write.cpp) gives them VHLO's form.
struct VhloForm {
  const VhloOp* newest = nullptr;
  std::vector<mlir::Attribute> attributes;  // one for each of newest->attributes
  bool is_plain = true;                     // nothing that VHLO restricts to a later version beside attributes
};

// Whether VHLO has an operation for this one: of stablehlo, and functions.
bool has_vhlo_form(mlir::Operation* op);
// Errors: kInvalidArgument for attributes that are missing or of a wrong kind.
Result<VhloForm> to_vhlo(mlir::Operation* op);
// Whether this version of the operation says all that the form does.
bool fits(const VhloOp& op, const VhloForm& form);
// The oldest version that does.
const VhloOp& oldest_that_fits(const VhloForm& form);

}  // namespace flashlift::stablehlo::bytecode
