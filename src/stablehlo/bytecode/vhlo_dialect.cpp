#include "stablehlo/bytecode/vhlo_dialect.h"

#include <bit>

#include "llvm/ADT/TypeSwitch.h"
#include "mlir/Bytecode/BytecodeImplementation.h"
#include "mlir/Dialect/Quant/IR/QuantTypes.h"
#include "mlir/Dialect/Shape/IR/Shape.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "stablehlo/bytecode/spelling.h"
#include "support/lazy.h"

namespace flashlift::stablehlo::bytecode {
namespace {

std::string_view view(llvm::StringRef text) { return {text.data(), text.size()}; }

// Holds one attribute or type.
template <typename Storage, typename Allocator, typename Held>
struct Holder : Storage {
  using KeyTy = Held;
  explicit Holder(Held inner) : held(inner) {}
  bool operator==(const KeyTy& key) const { return held == key; }
  static llvm::hash_code hashKey(const KeyTy& key) { return llvm::hash_value(key.getAsOpaquePointer()); }
  static Holder* construct(Allocator& allocator, const KeyTy& key) {
    return new (allocator.template allocate<Holder>()) Holder(key);
  }
  Held held;
};

using AttributeHolder = Holder<mlir::AttributeStorage, mlir::AttributeStorageAllocator, mlir::Attribute>;
using TypeHolder = Holder<mlir::TypeStorage, mlir::TypeStorageAllocator, mlir::Type>;

class VhloWrappedAttr : public mlir::Attribute::AttrBase<VhloWrappedAttr, mlir::Attribute, AttributeHolder> {
 public:
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(VhloWrappedAttr)
  using Base::Base;
  static constexpr llvm::StringLiteral name = "vhlo.wrapped_attribute";
  mlir::Attribute held() const { return getImpl()->held; }
};

class VhloWrappedType : public mlir::Type::TypeBase<VhloWrappedType, mlir::Type, TypeHolder> {
 public:
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(VhloWrappedType)
  using Base::Base;
  static constexpr llvm::StringLiteral name = "vhlo.wrapped_type";
  mlir::Type held() const { return getImpl()->held; }
};

struct TypeCode {
  uint64_t code = 0;
  Version since = kOldest;
};

// The code of a type without parameters.
std::optional<TypeCode> plain_code(mlir::Type type) {
  if (const auto integer = mlir::dyn_cast<mlir::IntegerType>(type)) {
    const bool has_no_sign = integer.isUnsigned();
    if (integer.isSigned()) {
      return std::nullopt;
    }
    switch (integer.getWidth()) {
      case 1:
        return has_no_sign ? std::nullopt : std::optional(TypeCode{0});
      case 2:
        return TypeCode{has_no_sign ? 32U : 31U, {1, 2, 0}};
      case 4:
        return TypeCode{has_no_sign ? 15U : 10U};
      case 8:
        return TypeCode{has_no_sign ? 16U : 11U};
      case 16:
        return TypeCode{has_no_sign ? 17U : 12U};
      case 32:
        return TypeCode{has_no_sign ? 18U : 13U};
      case 64:
        return TypeCode{has_no_sign ? 19U : 14U};
      default:
        return std::nullopt;
    }
  }
  if (const auto opaque = mlir::dyn_cast<mlir::OpaqueType>(type)) {
    return opaque.getDialectNamespace() == "stablehlo" && opaque.getTypeData() == "token" ? std::optional(TypeCode{22})
                                                                                          : std::nullopt;
  }
  return llvm::TypeSwitch<mlir::Type, std::optional<TypeCode>>(type)
      .Case<mlir::BFloat16Type>([](auto) { return TypeCode{2}; })
      .Case<mlir::Float16Type>([](auto) { return TypeCode{3}; })
      .Case<mlir::Float32Type>([](auto) { return TypeCode{4}; })
      .Case<mlir::Float64Type>([](auto) { return TypeCode{5}; })
      .Case<mlir::Float8E4M3FNType>([](auto) { return TypeCode{6}; })
      .Case<mlir::Float8E5M2Type>([](auto) { return TypeCode{7}; })
      .Case<mlir::IndexType>([](auto) { return TypeCode{9}; })
      .Case<mlir::shape::WitnessType>([](auto) { return TypeCode{26}; })
      .Case<mlir::Float8E4M3FNUZType>([](auto) { return TypeCode{27, {0, 10, 0}}; })
      .Case<mlir::Float8E5M2FNUZType>([](auto) { return TypeCode{28, {0, 10, 0}}; })
      .Case<mlir::Float8E4M3B11FNUZType>([](auto) { return TypeCode{29, {0, 11, 0}}; })
      .Case<mlir::NoneType>([](auto) { return TypeCode{33, {1, 6, 0}}; })
      .Case<mlir::FloatTF32Type>([](auto) { return TypeCode{34, {1, 6, 0}}; })
      .Case<mlir::Float8E4M3Type>([](auto) { return TypeCode{35, {1, 7, 0}}; })
      .Case<mlir::Float8E3M4Type>([](auto) { return TypeCode{36, {1, 7, 0}}; })
      .Case<mlir::Float4E2M1FNType>([](auto) { return TypeCode{37, {1, 8, 0}}; })
      .Case<mlir::Float6E2M3FNType>([](auto) { return TypeCode{38, {1, 8, 0}}; })
      .Case<mlir::Float6E3M2FNType>([](auto) { return TypeCode{39, {1, 8, 0}}; })
      .Case<mlir::Float8E8M0FNUType>([](auto) { return TypeCode{40, {1, 8, 0}}; })
      .Default([](auto) { return std::nullopt; });
}

// The latest of several versions; nothing if one of them is missing.
class Latest {
 public:
  explicit Latest(Version version = kOldest) : version_(version) {}
  void add(std::optional<Version> other) {
    version_ = version_ && other ? std::optional(std::max(*version_, *other)) : std::nullopt;
  }
  std::optional<Version> get() const { return version_; }

 private:
  std::optional<Version> version_;
};

struct Enumeration {
  uint64_t code;
  std::string_view mnemonic;
  std::vector<std::string_view> names;
};

const std::vector<Enumeration>& enumerations() {
  static constinit Lazy<const std::vector<Enumeration>> all;
  return all.get([] {
    return std::vector<Enumeration>{
        {3, "comparison_direction", {"EQ", "NE", "GE", "GT", "LE", "LT"}},
        {4, "comparison_type", {"NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"}},
        {7, "fft_type", {"FFT", "IFFT", "RFFT", "IRFFT"}},
        {11, "precision", {"DEFAULT", "HIGH", "HIGHEST"}},
        {12, "rng_algorithm", {"DEFAULT", "THREE_FRY", "PHILOX"}},
        {13, "rng_distribution", {"", "UNIFORM", "NORMAL"}},
        {16, "transpose", {"TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"}},
        {19, "result_accuracy_mode", {"DEFAULT", "HIGHEST", "TOLERANCE"}},
    };
  });
}

// "precision DEFAULT", "precision<DEFAULT>" or "result_accuracy_mode<DEFAULT>"
struct EnumerationValue {
  uint64_t code = 0;
  uint64_t value = 0;
};
std::optional<EnumerationValue> parse_enumeration(std::string_view text) {
  for (const Enumeration& each : enumerations()) {
    if (!text.starts_with(each.mnemonic) || text.size() <= each.mnemonic.size()) {
      continue;
    }
    std::string_view rest = text.substr(each.mnemonic.size());
    if (rest.front() == '<' && rest.ends_with('>')) {
      rest = rest.substr(1, rest.size() - 2);
    } else if (rest.front() == ' ') {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    const auto found = std::find(each.names.begin(), each.names.end(), rest);
    if (found != each.names.end() && !rest.empty()) {
      return EnumerationValue{each.code, static_cast<uint64_t>(found - each.names.begin())};
    }
  }
  return std::nullopt;
}

// "bounds<3, ?>"
std::optional<std::vector<int64_t>> parse_bounds(std::string_view text) {
  if (!text.starts_with("bounds<") || !text.ends_with('>')) {
    return std::nullopt;
  }
  std::string list = "[" + std::string(text.substr(7, text.size() - 8)) + "]";
  for (size_t at = list.find('?'); at != std::string::npos; at = list.find('?')) {
    list.replace(at, 1, std::to_string(mlir::ShapedType::kDynamic));
  }
  return parse_list(list);
}

struct Accuracy {
  double atol = 0, rtol = 0;
  int64_t ulps = 0;
  std::string_view mode;
};
std::optional<Accuracy> parse_accuracy(std::string_view text) {
  const std::optional<Fields> fields = parse_fields(text, "result_accuracy");
  if (!fields) {
    return std::nullopt;
  }
  Accuracy accuracy;
  const auto number = [&](std::string_view name) {
    const std::string_view found = find_field(*fields, name);
    return found.empty() ? 0.0 : std::strtod(std::string(found).c_str(), nullptr);
  };
  accuracy.atol = number("atol");
  accuracy.rtol = number("rtol");
  accuracy.ulps = parse_number(find_field(*fields, "ulps")).value_or(0);
  accuracy.mode = find_field(*fields, "mode");
  constexpr std::string_view kPrefix = "#stablehlo.";
  if (accuracy.mode.starts_with(kPrefix)) {
    accuracy.mode.remove_prefix(kPrefix.size());
  }
  return parse_enumeration(accuracy.mode) ? std::optional(accuracy) : std::nullopt;
}

struct Alias {
  std::vector<int64_t> output, operand;
  int64_t index = 0;
};
std::optional<Alias> parse_alias(std::string_view text) {
  const std::optional<Fields> fields = parse_fields(text, "output_operand_alias");
  if (!fields) {
    return std::nullopt;
  }
  const auto output = parse_list(find_field(*fields, "output_tuple_indices"));
  const auto operand = parse_list(find_field(*fields, "operand_tuple_indices"));
  const auto index = parse_number(find_field(*fields, "operand_index"));
  return output && operand && index ? std::optional(Alias{*output, *operand, *index}) : std::nullopt;
}

// "api 4", which to_vhlo.cpp writes
std::optional<int64_t> parse_api(std::string_view text) {
  return text.starts_with("api ") ? parse_number(text.substr(4)) : std::nullopt;
}

// Converts dimensions, which are an array in StableHLO, to VHLO's tensor. Null for other attributes.
mlir::DenseElementsAttr as_elements(mlir::Attribute attribute) {
  if (const auto ints = mlir::dyn_cast<mlir::DenseI64ArrayAttr>(attribute)) {
    const auto type = mlir::RankedTensorType::get({ints.size()}, mlir::IntegerType::get(attribute.getContext(), 64));
    return mlir::DenseElementsAttr::get(type, ints.asArrayRef());
  }
  if (const auto flags = mlir::dyn_cast<mlir::DenseBoolArrayAttr>(attribute)) {
    const auto type = mlir::RankedTensorType::get({flags.size()}, mlir::IntegerType::get(attribute.getContext(), 1));
    return mlir::DenseElementsAttr::get(type, flags.asArrayRef());
  }
  return mlir::dyn_cast<mlir::DenseElementsAttr>(attribute);
}

class VhloInterface : public mlir::BytecodeDialectInterface {
 public:
  explicit VhloInterface(mlir::Dialect* owner) : BytecodeDialectInterface(owner) {}

  mlir::LogicalResult writeAttribute(mlir::Attribute attribute, mlir::DialectBytecodeWriter& writer) const override {
    const auto wrapped = mlir::dyn_cast<VhloWrappedAttr>(attribute);
    return mlir::success(wrapped && write(wrapped.held(), writer));
  }

  mlir::LogicalResult writeType(mlir::Type type, mlir::DialectBytecodeWriter& writer) const override {
    const auto wrapped = mlir::dyn_cast<VhloWrappedType>(type);
    return mlir::success(wrapped && write(wrapped.held(), writer));
  }

 private:
  static void write_types(llvm::ArrayRef<mlir::Type> types, mlir::DialectBytecodeWriter& writer) {
    writer.writeVarInt(types.size());
    for (const mlir::Type each : types) {
      writer.writeType(wrap(each));
    }
  }

  static bool write(mlir::Type type, mlir::DialectBytecodeWriter& writer) {
    if (const std::optional<TypeCode> plain = plain_code(type)) {
      writer.writeVarInt(plain->code);
      return true;
    }
    if (const auto tensor = mlir::dyn_cast<mlir::RankedTensorType>(type)) {
      writer.writeVarInt(tensor.getEncoding() ? 21 : 20);
      if (tensor.getEncoding()) {
        writer.writeAttribute(wrap(tensor.getEncoding()));
      }
      writer.writeSignedVarInts(tensor.getShape());
      writer.writeType(wrap(tensor.getElementType()));
      return true;
    }
    if (const auto complex = mlir::dyn_cast<mlir::ComplexType>(type)) {
      writer.writeVarInt(1);
      writer.writeType(wrap(complex.getElementType()));
      return true;
    }
    if (const auto function = mlir::dyn_cast<mlir::FunctionType>(type)) {
      writer.writeVarInt(8);
      write_types(function.getInputs(), writer);
      write_types(function.getResults(), writer);
      return true;
    }
    if (const auto tuple = mlir::dyn_cast<mlir::TupleType>(type)) {
      writer.writeVarInt(23);
      write_types(tuple.getTypes(), writer);
      return true;
    }
    if (const auto unranked = mlir::dyn_cast<mlir::UnrankedTensorType>(type)) {
      writer.writeVarInt(25);
      writer.writeType(wrap(unranked.getElementType()));
      return true;
    }
    if (const auto buffer = mlir::dyn_cast<mlir::MemRefType>(type)) {
      writer.writeVarInt(41);
      writer.writeSignedVarInts(buffer.getShape());
      writer.writeType(wrap(buffer.getElementType()));
      return true;
    }
    return write_quantized(type, writer);
  }

  static bool write_quantized(mlir::Type type, mlir::DialectBytecodeWriter& writer) {
    const auto write_double = [&](double number) {
      writer.writeAPIntWithKnownWidth(llvm::APInt(64, std::bit_cast<uint64_t>(number)));
    };
    const auto quantized = mlir::dyn_cast<mlir::quant::QuantizedType>(type);
    if (!quantized) {
      return false;
    }
    const auto write_head = [&](uint64_t code) {
      writer.writeVarInt(code);
      writer.writeVarInt(quantized.getFlags());
      writer.writeType(wrap(quantized.getStorageType()));
      writer.writeType(wrap(quantized.getExpressedType()));
    };
    if (const auto uniform = mlir::dyn_cast<mlir::quant::UniformQuantizedType>(type)) {
      write_head(24);
      write_double(uniform.getScale());
      writer.writeSignedVarInt(uniform.getZeroPoint());
      writer.writeSignedVarInt(uniform.getStorageTypeMin());
      writer.writeSignedVarInt(uniform.getStorageTypeMax());
      return true;
    }
    if (const auto per_axis = mlir::dyn_cast<mlir::quant::UniformQuantizedPerAxisType>(type)) {
      write_head(30);
      writer.writeVarInt(static_cast<uint64_t>(per_axis.getQuantizedDimension()));
      writer.writeSignedVarInt(per_axis.getStorageTypeMin());
      writer.writeSignedVarInt(per_axis.getStorageTypeMax());
      writer.writeVarInt(per_axis.getScales().size());
      for (const double scale : per_axis.getScales()) {
        write_double(scale);
      }
      writer.writeSignedVarInts(per_axis.getZeroPoints());
      return true;
    }
    return false;
  }

  static bool write(mlir::Attribute attribute, mlir::DialectBytecodeWriter& writer) {
    if (const auto flag = mlir::dyn_cast<mlir::BoolAttr>(attribute)) {
      writer.writeVarInt(2);
      writer.writeVarInt(flag.getValue() ? 1 : 0);
      return true;
    }
    if (const auto integer = mlir::dyn_cast<mlir::IntegerAttr>(attribute)) {
      writer.writeVarInt(9);
      writer.writeType(wrap(integer.getType()));
      writer.writeAPIntWithKnownWidth(integer.getValue());
      return true;
    }
    if (const auto number = mlir::dyn_cast<mlir::FloatAttr>(attribute)) {
      writer.writeVarInt(8);
      writer.writeType(wrap(number.getType()));
      writer.writeAPFloatWithKnownSemantics(number.getValue());
      return true;
    }
    if (const auto text = mlir::dyn_cast<mlir::StringAttr>(attribute)) {
      writer.writeVarInt(14);
      writer.writeOwnedString(text.getValue());
      return true;
    }
    if (const auto list = mlir::dyn_cast<mlir::ArrayAttr>(attribute)) {
      writer.writeVarInt(1);
      writer.writeVarInt(list.size());
      for (const mlir::Attribute each : list) {
        writer.writeAttribute(wrap_known(each));
      }
      return true;
    }
    if (const auto dictionary = mlir::dyn_cast<mlir::DictionaryAttr>(attribute)) {
      writer.writeVarInt(6);
      writer.writeVarInt(dictionary.size());
      for (const mlir::NamedAttribute& each : dictionary) {
        writer.writeAttribute(wrap(each.getName()));
        writer.writeAttribute(wrap_known(each.getValue()));
      }
      return true;
    }
    if (const auto type = mlir::dyn_cast<mlir::TypeAttr>(attribute)) {
      writer.writeVarInt(17);
      writer.writeType(wrap(type.getValue()));
      return true;
    }
    if (const mlir::DenseElementsAttr elements = as_elements(attribute)) {
      writer.writeVarInt(15);
      writer.writeType(wrap(elements.getType()));
      writer.writeOwnedBlob(elements.getRawData());
      return true;
    }
    if (const auto resource = mlir::dyn_cast<mlir::DenseResourceElementsAttr>(attribute)) {
      writer.writeVarInt(15);
      writer.writeType(wrap(resource.getType()));
      writer.writeOwnedBlob(resource.getRawHandle().getBlob()->getData());
      return true;
    }
    const auto opaque = mlir::dyn_cast<mlir::OpaqueAttr>(attribute);
    return opaque && write_text(view(opaque.getAttrData()), opaque, writer);
  }

  static bool write_text(std::string_view text, mlir::OpaqueAttr whole, mlir::DialectBytecodeWriter& writer) {
    if (const auto value = parse_enumeration(text)) {
      writer.writeVarInt(value->code);
      writer.writeVarInt(value->value);
      return true;
    }
    if (const auto api = parse_api(text)) {
      writer.writeVarInt(5);
      writer.writeVarInt(static_cast<uint64_t>(*api));
      return true;
    }
    if (const auto alias = parse_alias(text)) {
      writer.writeVarInt(10);
      writer.writeSignedVarInts(alias->output);
      writer.writeSignedVarInt(alias->index);
      writer.writeSignedVarInts(alias->operand);
      return true;
    }
    if (const auto bounds = parse_bounds(text)) {
      writer.writeVarInt(18);
      writer.writeSignedVarInts(*bounds);
      return true;
    }
    if (const auto accuracy = parse_accuracy(text)) {
      writer.writeVarInt(20);
      for (const double tolerance : {accuracy->atol, accuracy->rtol}) {
        writer.writeAPIntWithKnownWidth(llvm::APInt(64, std::bit_cast<uint64_t>(tolerance)));
      }
      writer.writeSignedVarInt(accuracy->ulps);
      const llvm::StringRef mode(accuracy->mode.data(), accuracy->mode.size());
      writer.writeAttribute(wrap(mlir::OpaqueAttr::get(whole.getDialectNamespace(), mode, whole.getType())));
      return true;
    }
    return false;
  }
};

class VhloDialect : public mlir::Dialect {
 public:
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(VhloDialect)
  static constexpr llvm::StringLiteral getDialectNamespace() { return llvm::StringLiteral("vhlo"); }
  explicit VhloDialect(mlir::MLIRContext* owner)
      : Dialect(getDialectNamespace(), owner, mlir::TypeID::get<VhloDialect>()) {
    allowUnknownOperations();
    addAttributes<VhloWrappedAttr>();
    addTypes<VhloWrappedType>();
    addInterfaces<VhloInterface>();
  }
  // Only a debugger prints modules with these wrappers.
  void printAttribute(mlir::Attribute, mlir::DialectAsmPrinter&) const override {}
  void printType(mlir::Type, mlir::DialectAsmPrinter&) const override {}
};

}  // namespace

std::optional<Version> version_of(mlir::Type type) {
  if (const std::optional<TypeCode> plain = plain_code(type)) {
    return plain->since;
  }
  Latest latest;
  if (const auto tensor = mlir::dyn_cast<mlir::RankedTensorType>(type)) {
    latest.add(version_of(tensor.getElementType()));
    if (tensor.getEncoding()) {
      latest.add(version_of(tensor.getEncoding()));
    }
  } else if (const auto complex = mlir::dyn_cast<mlir::ComplexType>(type)) {
    latest.add(version_of(complex.getElementType()));
  } else if (const auto function = mlir::dyn_cast<mlir::FunctionType>(type)) {
    for (const mlir::Type each : function.getInputs()) {
      latest.add(version_of(each));
    }
    for (const mlir::Type each : function.getResults()) {
      latest.add(version_of(each));
    }
  } else if (const auto tuple = mlir::dyn_cast<mlir::TupleType>(type)) {
    for (const mlir::Type each : tuple.getTypes()) {
      latest.add(version_of(each));
    }
  } else if (const auto unranked = mlir::dyn_cast<mlir::UnrankedTensorType>(type)) {
    latest.add(version_of(unranked.getElementType()));
  } else if (const auto buffer = mlir::dyn_cast<mlir::MemRefType>(type)) {
    latest.add(buffer.getLayout().isIdentity() && !buffer.getMemorySpace() ? std::optional(Version{1, 13, 0})
                                                                           : std::nullopt);
    latest.add(version_of(buffer.getElementType()));
  } else if (const auto uniform = mlir::dyn_cast<mlir::quant::UniformQuantizedType>(type)) {
    latest.add(version_of(uniform.getStorageType()));
    latest.add(version_of(uniform.getExpressedType()));
  } else if (const auto per_axis = mlir::dyn_cast<mlir::quant::UniformQuantizedPerAxisType>(type)) {
    latest.add(Version{0, 18, 0});
    latest.add(version_of(per_axis.getStorageType()));
    latest.add(version_of(per_axis.getExpressedType()));
  } else {
    return std::nullopt;
  }
  return latest.get();
}

std::optional<Version> version_of(mlir::Attribute attribute) {
  Latest latest;
  if (mlir::isa<mlir::BoolAttr, mlir::StringAttr>(attribute)) {
    return kOldest;
  }
  if (const auto list = mlir::dyn_cast<mlir::ArrayAttr>(attribute)) {
    for (const mlir::Attribute each : list) {
      latest.add(version_of(each));
    }
    return latest.get();
  }
  if (const auto dictionary = mlir::dyn_cast<mlir::DictionaryAttr>(attribute)) {
    for (const mlir::NamedAttribute& each : dictionary) {
      latest.add(version_of(each.getValue()));
    }
    return latest.get();
  }
  if (const auto type = mlir::dyn_cast<mlir::TypeAttr>(attribute)) {
    return version_of(type.getValue());
  }
  if (const auto resource = mlir::dyn_cast<mlir::DenseResourceElementsAttr>(attribute)) {
    return resource.getRawHandle().getBlob() != nullptr ? version_of(resource.getType()) : std::nullopt;
  }
  if (mlir::isa<mlir::DenseI64ArrayAttr, mlir::DenseBoolArrayAttr>(attribute)) {
    return kOldest;
  }
  if (mlir::isa<mlir::IntegerAttr, mlir::FloatAttr, mlir::DenseIntOrFPElementsAttr>(attribute)) {
    return version_of(mlir::cast<mlir::TypedAttr>(attribute).getType());
  }
  const auto opaque = mlir::dyn_cast<mlir::OpaqueAttr>(attribute);
  if (!opaque) {
    return std::nullopt;
  }
  const std::string_view text = view(opaque.getAttrData());
  if (opaque.getDialectNamespace() == "vhlo") {
    return kOldest;
  }
  if (opaque.getDialectNamespace() != "stablehlo") {
    return std::nullopt;
  }
  if (text.starts_with("result_accuracy")) {
    return parse_accuracy(text) || parse_enumeration(text) ? std::optional(Version{1, 9, 0}) : std::nullopt;
  }
  return parse_enumeration(text) || parse_alias(text) || parse_bounds(text) ? std::optional(kOldest) : std::nullopt;
}

void load_vhlo(mlir::MLIRContext* context) { context->loadDialect<VhloDialect>(); }

mlir::Type wrap(mlir::Type type) { return VhloWrappedType::get(type.getContext(), type); }

mlir::Attribute wrap(mlir::Attribute attribute) { return VhloWrappedAttr::get(attribute.getContext(), attribute); }

mlir::Attribute wrap_known(mlir::Attribute attribute) {
  const bool is_container = mlir::isa<mlir::ArrayAttr, mlir::DictionaryAttr>(attribute);
  return is_container || version_of(attribute) ? wrap(attribute) : attribute;
}

}  // namespace flashlift::stablehlo::bytecode
