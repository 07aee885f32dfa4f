#include "stablehlo/reader/dialect.h"

#include "llvm/ADT/DenseMap.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Quant/IR/Quant.h"
#include "mlir/Dialect/Shape/IR/Shape.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/DialectRegistry.h"
#include "stablehlo/reader/attributes.h"
#include "stablehlo/reader/syntax.h"

namespace flashlift::stablehlo {
namespace {

// The canonical text of an attribute or a type. Emits an error and returns nothing if there is none.
std::optional<std::string> canonical_text(mlir::DialectAsmParser& parser) {
  const mlir::StringRef text = parser.getFullSymbolSpec();
  std::optional<std::string> canonical = canonical_attribute({text.data(), text.size()});
  if (!canonical) {
    parser.emitError(parser.getNameLoc(),
                     "a comment within this attribute or type holds a bracket; leave the comment out");
  }
  return canonical;
}

OpKind find_kind(mlir::StringRef name) {
  const OpInfo* op = find_op(std::string_view(name.data(), name.size()));
  return op == nullptr ? OpKind::kOther : op->kind;
}

class TextDialect : public mlir::Dialect {
 public:
  OpKind kind_of(mlir::OperationName op_name) {
    const auto [known, is_new] = kinds_.try_emplace(op_name.getAsOpaquePointer(), OpKind::kOther);
    if (is_new) {
      known->second = find_kind(op_name.getStringRef());
    }
    return known->second;
  }

  std::optional<ParseOpHook> getParseOperationHook(mlir::StringRef op_name) const override {
    const OpInfo* op = find_op(std::string_view(op_name.data(), op_name.size()));
    // Registers the hook also for operations without a pretty form: its error is clearer than "unknown operation".
    return parse_hook(op);
  }

  mlir::Attribute parseAttribute(mlir::DialectAsmParser& parser, mlir::Type type) const override {
    const auto text = canonical_text(parser);
    return text ? mlir::OpaqueAttr::get(mlir::StringAttr::get(getContext(), getNamespace()), *text,
                                        type ? type : mlir::NoneType::get(getContext()))
                : mlir::OpaqueAttr();
  }

  mlir::Type parseType(mlir::DialectAsmParser& parser) const override {
    const auto text = canonical_text(parser);
    return text ? mlir::OpaqueType::get(mlir::StringAttr::get(getContext(), getNamespace()), *text)
                : mlir::OpaqueType();
  }

 protected:
  TextDialect(mlir::StringRef dialect_name, mlir::MLIRContext* owner, mlir::TypeID id)
      : Dialect(dialect_name, owner, id) {
    allowUnknownOperations();
    allowUnknownTypes();
  }

 private:
  llvm::DenseMap<const void*, OpKind> kinds_;  // by the name's address, which lives as long as the context
};

class StablehloDialect : public TextDialect {
 public:
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(StablehloDialect)
  static constexpr llvm::StringLiteral getDialectNamespace() { return llvm::StringLiteral("stablehlo"); }
  explicit StablehloDialect(mlir::MLIRContext* owner)
      : TextDialect(getDialectNamespace(), owner, mlir::TypeID::get<StablehloDialect>()) {}
};

class ChloDialect : public TextDialect {
 public:
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ChloDialect)
  static constexpr llvm::StringLiteral getDialectNamespace() { return llvm::StringLiteral("chlo"); }
  explicit ChloDialect(mlir::MLIRContext* owner)
      : TextDialect(getDialectNamespace(), owner, mlir::TypeID::get<ChloDialect>()) {}
};

class SdyDialect : public TextDialect {
 public:
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(SdyDialect)
  static constexpr llvm::StringLiteral getDialectNamespace() { return llvm::StringLiteral("sdy"); }
  explicit SdyDialect(mlir::MLIRContext* owner)
      : TextDialect(getDialectNamespace(), owner, mlir::TypeID::get<SdyDialect>()) {}
};

// Operations of older exporters. None has a meaning here: they are kept.
class MhloDialect : public TextDialect {
 public:
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(MhloDialect)
  static constexpr llvm::StringLiteral getDialectNamespace() { return llvm::StringLiteral("mhlo"); }
  explicit MhloDialect(mlir::MLIRContext* owner)
      : TextDialect(getDialectNamespace(), owner, mlir::TypeID::get<MhloDialect>()) {}

  std::optional<ParseOpHook> getParseOperationHook(mlir::StringRef) const override { return elementwise_hook(); }
};

}  // namespace

OpKind kind_of(mlir::OperationName name) {
  mlir::Dialect* const dialect = name.getDialect();
  if (dialect == nullptr) {  // not loaded yet
    return find_kind(name.getStringRef());
  }
  return mlir::isa<StablehloDialect, ChloDialect, SdyDialect>(dialect)
             ? static_cast<TextDialect*>(dialect)->kind_of(name)
             : OpKind::kOther;
}

void register_dialects(mlir::DialectRegistry& registry) {
  registry.insert<StablehloDialect, ChloDialect, SdyDialect, MhloDialect, mlir::func::FuncDialect,
                  mlir::arith::ArithDialect, mlir::tensor::TensorDialect, mlir::shape::ShapeDialect,
                  mlir::quant::QuantDialect>();
}

}  // namespace flashlift::stablehlo
