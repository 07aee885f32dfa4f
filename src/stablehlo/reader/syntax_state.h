// Shared by the parts of the pretty-form reader. Only for syntax.cpp and syntax_special.cpp.
#pragma once

#include <string_view>

#include "mlir/IR/Builders.h"
#include "mlir/IR/OpImplementation.h"
#include "stablehlo/reader/op_table.h"

namespace flashlift::stablehlo {

// All attributes are collected in result.attributes. After parsing, module.cpp separates the operation's own
// attributes, for both forms.
struct SyntaxState {
  mlir::OpAsmParser& parser;
  mlir::OperationState& result;
  const OpInfo& op;
  llvm::SMLoc start;
  llvm::SmallVector<mlir::OpAsmParser::UnresolvedOperand, 4> operands{};

  mlir::Builder& builder() { return parser.getBuilder(); }
  void add(std::string_view name, mlir::Attribute value) {
    result.addAttribute(llvm::StringRef(name.data(), name.size()), value);
  }
  // #stablehlo<mnemonic VALUE> and similar attributes.
  mlir::Attribute text_attribute(std::string_view text) {
    mlir::MLIRContext* context = parser.getContext();
    return mlir::OpaqueAttr::get(mlir::StringAttr::get(context, "stablehlo"), llvm::StringRef(text.data(), text.size()),
                                 mlir::NoneType::get(context));
  }
  mlir::ParseResult resolve(llvm::ArrayRef<mlir::Type> types) {
    return parser.resolveOperands(operands, types, start, result.operands);
  }
  // Applies a ": function type" that was read: its inputs are the operands' types.
  mlir::ParseResult apply(mlir::FunctionType type) {
    result.addTypes(type.getResults());
    return resolve(type.getInputs());
  }
  mlir::ParseResult parse_dims(std::string_view name) {
    const mlir::Attribute dims = mlir::DenseI64ArrayAttr::parse(parser, {});
    if (!dims) {
      return mlir::failure();
    }
    add(name, dims);
    return mlir::success();
  }
  mlir::ParseResult parse_enum(std::string_view name, std::string_view mnemonic);
};

// The functions for "!name" words. Null for an unknown name.
using SpecialSyntax = mlir::ParseResult (*)(SyntaxState&);
SpecialSyntax find_special_syntax(std::string_view name);

}  // namespace flashlift::stablehlo
