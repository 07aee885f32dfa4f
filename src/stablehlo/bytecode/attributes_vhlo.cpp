// Reads attributes and types of VHLO, the versioned dialect for StableHLO, as those that they stand for.
#include <bit>

#include "mlir/Dialect/Quant/IR/Quant.h"
#include "mlir/Dialect/Quant/IR/QuantTypes.h"
#include "mlir/Dialect/Shape/IR/Shape.h"
#include "stablehlo/bytecode/attributes.h"

namespace flashlift::stablehlo::bytecode {

mlir::Attribute AttributeReader::read_vhlo_attribute(ByteReader& reader) {
  const size_t offset = reader.offset();
  const uint64_t code = reader.varint();
  switch (code) {
    case 1:
      return mlir::ArrayAttr::get(context_, read_attributes(reader));
    case 2:
      return mlir::BoolAttr::get(context_, reader.varint() != 0);
    case 3:
      return enumerated("stablehlo", "comparison_direction", reader.varint(), {"EQ", "NE", "GE", "GT", "LE", "LT"});
    case 4:
      return enumerated("stablehlo", "comparison_type", reader.varint(),
                        {"NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"});
    case 5: {
      const uint64_t version = reader.varint();
      return mlir::IntegerAttr::get(mlir::IntegerType::get(context_, 32), llvm::APInt(32, version & 0xFFFFFFFF));
    }
    case 6:
      return read_dictionary(reader, offset);
    case 7:
      return enumerated("stablehlo", "fft_type", reader.varint(), {"FFT", "IFFT", "RFFT", "IRFFT"});
    case 8:
      return read_float(reader);
    case 9:
      return read_integer(reader);
    case 10:
      return read_alias(reader);
    case 11:
      return enumerated("stablehlo", "precision", reader.varint(), {"DEFAULT", "HIGH", "HIGHEST"});
    case 12:
      return enumerated("stablehlo", "rng_algorithm", reader.varint(), {"DEFAULT", "THREE_FRY", "PHILOX"});
    case 13:
      return enumerated("stablehlo", "rng_distribution", reader.varint(), {"", "UNIFORM", "NORMAL"});
    case 14: {
      const std::string_view text = read_string(reader);
      return mlir::StringAttr::get(context_, llvm::StringRef(text.data(), text.size()));
    }
    case 15:
      return read_dense_elements(reader);
    case 16:
      return enumerated("stablehlo", "transpose", reader.varint(),
                        {"TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"});
    case 17: {
      const mlir::Type type = read_type(reader);
      return type ? mlir::TypeAttr::get(type) : mlir::TypeAttr();
    }
    case 18:
      return read_bounds(reader);
    case 19:
      return read_accuracy_mode(reader);
    case 20:
      return read_accuracy(reader);
    case 21: {
      const int64_t before = reader.signed_varint();
      return spelled("stablehlo", fmt::format("({}){}", before, reader.signed_varint()));
    }
    case 22: {
      const std::string name = read_text_of(reader);
      return spell_axis_ref(name, reader.varint() != 0 ? read_text_of(reader) : "");
    }
    case 23: {
      const std::string mesh = read_mesh_name(reader);
      const auto axes = read_as<mlir::ArrayAttr>(reader, "a list of axes");
      return axes ? spell_mesh_axes(mesh, axes.getValue()) : mlir::Attribute();
    }
    case 24: {
      const std::string name = read_text_of(reader);
      return spelled("stablehlo", fmt::format("mesh_axis<name = {}, size = {}>", name, reader.signed_varint()));
    }
    case 25: {
      const auto axes = read_as<mlir::ArrayAttr>(reader, "a list of axes");
      const mlir::Attribute devices = read_optional_attribute(reader);
      return axes ? spell_mesh(axes.getValue(), devices) : mlir::Attribute();
    }
    default:
      failure_.unsupported(
          "byte {}: VHLO has no attribute of kind {} up to version 1.20; write the module for an older version", offset,
          code);
      return {};
  }
}

mlir::Type AttributeReader::read_quantized(ByteReader& reader, bool per_axis) {
  const auto flags = static_cast<unsigned>(reader.varint());
  const mlir::Type storage = read_type(reader);
  const mlir::Type expressed = read_type(reader);
  if (failure_) {
    return {};
  }
  context_->loadDialect<mlir::quant::QuantDialect>();
  const auto emit = [this] { return mlir::emitError(mlir::UnknownLoc::get(context_)); };
  const auto read_double = [&] { return std::bit_cast<double>(read_bits(reader, 64)); };
  if (!per_axis) {
    const double scale = read_double();
    const int64_t zero = reader.signed_varint();
    const int64_t low = reader.signed_varint();
    const int64_t high = reader.signed_varint();
    return mlir::quant::UniformQuantizedType::getChecked(emit, flags, storage, expressed, scale, zero, low, high);
  }
  const uint64_t dimension = reader.varint();
  const int64_t low = reader.signed_varint();
  const int64_t high = reader.signed_varint();
  std::vector<double> scales(reader.count());
  for (double& scale : scales) {
    scale = read_double();
  }
  const Ints zeros = read_ints(reader);
  if (dimension > INT32_MAX || failure_) {
    failure_.invalid("byte {}: expected the number of a dimension, got {}", reader.offset(), dimension);
    return {};
  }
  return mlir::quant::UniformQuantizedPerAxisType::getChecked(emit, flags, storage, expressed, scales, zeros,
                                                              static_cast<int32_t>(dimension), low, high);
}

mlir::Type AttributeReader::read_vhlo_type(ByteReader& reader) {
  const size_t offset = reader.offset();
  const uint64_t code = reader.varint();
  const auto integer = [this](unsigned width) { return mlir::IntegerType::get(context_, width); };
  const auto without_sign = [this](unsigned width) {
    return mlir::IntegerType::get(context_, width, mlir::IntegerType::Unsigned);
  };
  switch (code) {
    case 0:
      return integer(1);
    case 1:
      return read_complex(reader);
    case 2:
      return mlir::BFloat16Type::get(context_);
    case 3:
      return mlir::Float16Type::get(context_);
    case 4:
      return mlir::Float32Type::get(context_);
    case 5:
      return mlir::Float64Type::get(context_);
    case 6:
      return mlir::Float8E4M3FNType::get(context_);
    case 7:
      return mlir::Float8E5M2Type::get(context_);
    case 8:
      return read_function(reader);
    case 9:
      return mlir::IndexType::get(context_);
    case 10:
    case 11:
    case 12:
    case 13:
    case 14:
      return integer(4U << (code - 10));
    case 15:
    case 16:
    case 17:
    case 18:
    case 19:
      return without_sign(4U << (code - 15));
    case 20:
      return read_tensor(reader, {});
    case 21: {
      const mlir::Attribute encoding = read_attribute(reader);
      return read_tensor(reader, encoding);
    }
    case 22:
      return spelled_type("token");
    case 23:
      return read_tuple(reader);
    case 24:
      return read_quantized(reader, /*per_axis=*/false);
    case 25:
      return read_unranked_tensor(reader);
    case 26:
      context_->loadDialect<mlir::shape::ShapeDialect>();
      return mlir::shape::WitnessType::get(context_);
    case 27:
      return mlir::Float8E4M3FNUZType::get(context_);
    case 28:
      return mlir::Float8E5M2FNUZType::get(context_);
    case 29:
      return mlir::Float8E4M3B11FNUZType::get(context_);
    case 30:
      return read_quantized(reader, /*per_axis=*/true);
    case 31:
      return integer(2);
    case 32:
      return without_sign(2);
    case 33:
      return mlir::NoneType::get(context_);
    case 34:
      return mlir::FloatTF32Type::get(context_);
    case 35:
      return mlir::Float8E4M3Type::get(context_);
    case 36:
      return mlir::Float8E3M4Type::get(context_);
    case 37:
      return mlir::Float4E2M1FNType::get(context_);
    case 38:
      return mlir::Float6E2M3FNType::get(context_);
    case 39:
      return mlir::Float6E3M2FNType::get(context_);
    case 40:
      return mlir::Float8E8M0FNUType::get(context_);
    case 41: {
      const auto tensor = mlir::dyn_cast_or_null<mlir::RankedTensorType>(read_tensor(reader, {}));
      return tensor ? mlir::MemRefType::getChecked([this] { return mlir::emitError(mlir::UnknownLoc::get(context_)); },
                                                   tensor.getShape(), tensor.getElementType(), mlir::AffineMap(),
                                                   mlir::Attribute())
                    : mlir::MemRefType();
    }
    case 42:
      return read_future(reader);
    default:
      failure_.unsupported(
          "byte {}: VHLO has no type of kind {} up to version 1.20; write the module for an older "
          "version",
          offset, code);
      return {};
  }
}

}  // namespace flashlift::stablehlo::bytecode
