// Reading the pretty form of operations by a small description of it, one line an operation (ops.def), instead of one
// parser an operation. The description is a list of words, read from left to right:
//
//   %            one operand
//   %*           operands between commas, also none
//   %*,          operands with a comma after each
//   , = ( ) [ ]  themselves
//   {}           the attribute dictionary, which may be missing
//   word         that keyword
//   $name:kind   an attribute: i32, i64, bool, string, dims ([1, 2] as array<i64>), symbol (@name as a string) or
//                enum(mnemonic) (a keyword that becomes #stablehlo<mnemonic KEYWORD>)
//   !name        what no general rule describes, a function of that name in syntax_special.cpp
//   :same        ": type" of all operands and the result, or ": function type"
//   :func        ": function type"
//   :result      ": types" of the results of an operation without operands
//   :arrow       ": types -> types"
//   :select      ": predicate type, type", or ": function type"
//   :complex     ": type" of the result, the operands being its real counterparts, or ": function type"
//   :tuple       ": tuple type", the operands being its elements
#pragma once

#include <optional>

#include "mlir/IR/Dialect.h"
#include "stablehlo/reader/op_table.h"

namespace flashlift::stablehlo {

// The hook that reads `op`'s pretty form; for an operation without one (or unknown: null) a hook that says so.
std::optional<mlir::Dialect::ParseOpHook> parse_hook(const OpInfo* op);

// The hook for operations that are not in the table. It reads the pretty form of elementwise ones, `%x, %y : type` or
// `%x, %y : function type`, and says of any other that it is not known.
mlir::Dialect::ParseOpHook elementwise_hook();

}  // namespace flashlift::stablehlo
