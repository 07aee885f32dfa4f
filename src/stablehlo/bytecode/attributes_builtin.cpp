// Reads attributes and types of MLIR's builtin dialect by the codes of its bytecode.

#include "mlir/IR/BuiltinAttributes.h"
#include "stablehlo/bytecode/attributes.h"
#include "stablehlo/reader/attribute_guard.h"

namespace flashlift::stablehlo::bytecode {
namespace {

llvm::StringRef ref(std::string_view text) { return {text.data(), text.size()}; }

// The number of bits of one element; 0 if it is not a number of up to 64 bits.
unsigned width_of(mlir::Type type) {
  if (mlir::isa<mlir::IndexType>(type)) {
    return 64;
  }
  if (!type.isIntOrFloat()) {
    return 0;
  }
  const unsigned width = type.getIntOrFloatBitWidth();
  return width <= 64 ? width : 0;
}

}  // namespace

// Up to 8 bits are one byte. More are a signed varint of the bits.
uint64_t AttributeReader::read_bits(ByteReader& reader, unsigned width) {
  const uint64_t bits = width <= 8 ? reader.byte() : static_cast<uint64_t>(reader.signed_varint());
  return width == 64 ? bits : bits & ((uint64_t{1} << width) - 1);
}

mlir::Attribute AttributeReader::read_dictionary(ByteReader& reader, size_t offset) {
  mlir::NamedAttrList list;
  const size_t count = reader.count();
  for (size_t i = 0; i < count && !failure_; ++i) {
    const auto name = read_as<mlir::StringAttr>(reader, "an attribute's name");
    const mlir::Attribute value = read_attribute(reader);
    if (name && value && !name.getValue().empty()) {
      list.push_back({name, value});
    } else {
      failure_.invalid("byte {}: expected an attribute's name and value", reader.offset());
    }
  }
  if (const auto twice = list.findDuplicate(); twice && !failure_) {
    failure_.invalid("byte {}: the attribute '{}' occurs twice", offset, twice->getName().str());
  }
  return failure_ ? mlir::DictionaryAttr() : list.getDictionary(context_);
}

mlir::Attribute AttributeReader::read_integer(ByteReader& reader) {
  const mlir::Type type = read_type(reader);
  if (!type || !(mlir::isa<mlir::IndexType, mlir::IntegerType>(type)) || width_of(type) == 0) {
    failure_.unsupported("byte {}: expected an integer of 1 to 64 bits", reader.offset());
    return {};
  }
  const unsigned width = width_of(type);
  return mlir::IntegerAttr::get(type, llvm::APInt(width, read_bits(reader, width)));
}

mlir::Attribute AttributeReader::read_float(ByteReader& reader) {
  auto type = mlir::dyn_cast_or_null<mlir::FloatType>(read_type(reader));
  if (!type || width_of(type) == 0) {
    failure_.unsupported("byte {}: expected a float of up to 64 bits", reader.offset());
    return {};
  }
  const llvm::APInt bits(type.getWidth(), read_bits(reader, type.getWidth()));
  return mlir::FloatAttr::get(type, llvm::APFloat(type.getFloatSemantics(), bits));
}

mlir::Attribute AttributeReader::read_dense_elements(ByteReader& reader) {
  const mlir::Type type = read_type(reader);
  const uint64_t size = reader.varint();
  return make_dense_elements(type, reader.bytes(size));
}

mlir::Attribute AttributeReader::make_dense_elements(mlir::Type type, std::string_view bytes) {
  const auto shaped = mlir::dyn_cast_or_null<mlir::ShapedType>(type);
  if (!shaped || !shaped.hasStaticShape() || failure_) {
    failure_.invalid("expected the elements of a constant to have a tensor type of known sizes");
    return {};
  }
  mlir::Type element = shaped.getElementType();
  if (const auto complex = mlir::dyn_cast<mlir::ComplexType>(element)) {
    element = complex.getElementType();
  }
  if (width_of(element) == 0) {
    failure_.unsupported("a constant has elements that are not numbers of up to 64 bits");
    return {};
  }
  const auto elements = static_cast<size_t>(shaped.getNumElements());
  std::string packed;
  if (shaped.getElementType().isInteger(1) && elements > 0) {
    // MLIR 22 writes packed bits; other versions write one byte for each element.
    const bool is_one_value = bytes.size() == 1 && (elements == 1 || elements > 8);
    if (is_one_value) {
      packed = bytes.front() != 0 ? "\xff" : std::string(1, '\0');
      bytes = packed;
    } else if (bytes.size() == elements) {
      packed.resize((elements + 7) / 8);
      for (size_t i = 0; i < elements; ++i) {
        packed[i / 8] = static_cast<char>(packed[i / 8] | (bytes[i] != 0 ? 1 << (i % 8) : 0));
      }
      bytes = packed;
    }
  }
  bool is_splat = false;
  const llvm::ArrayRef<char> raw(bytes.data(), bytes.size());
  if (!mlir::DenseElementsAttr::isValidRawBuffer(shaped, raw, is_splat)) {
    failure_.invalid("a constant of {} elements has {} bytes: the bytecode is damaged", elements, bytes.size());
    return {};
  }
  return mlir::DenseElementsAttr::getFromRawBuffer(shaped, raw);
}

mlir::Attribute AttributeReader::read_dense_array(ByteReader& reader) {
  const mlir::Type element = read_type(reader);
  const uint64_t count = reader.varint();
  const std::string_view bytes = reader.bytes(reader.varint());
  const unsigned width = element ? width_of(element) : 0;
  // A boolean is one byte.
  const bool fits = width == 1 ? bytes.size() == count
                               : width >= 8 && width % 8 == 0 && bytes.size() % (width / 8) == 0 &&
                                     bytes.size() / (width / 8) == count;
  if (!fits || failure_ || mlir::isa<mlir::IndexType>(element)) {
    failure_.invalid("byte {}: expected an array of {} numbers, got {} bytes", reader.offset(), count, bytes.size());
    return {};
  }
  return mlir::DenseArrayAttr::get(context_, element, static_cast<int64_t>(count), {bytes.data(), bytes.size()});
}

mlir::Attribute AttributeReader::read_dense_resource(ByteReader& reader) {
  const mlir::Type type = read_type(reader);
  const uint64_t index = reader.varint();
  if (index >= container_.resources.size()) {
    failure_.invalid("byte {}: there is no resource {}", reader.offset(), index);
    return {};
  }
  ByteReader resource = container_.resources[index].reader(failure_);
  const uint64_t alignment = resource.varint();
  const uint64_t size = resource.varint();
  resource.align(alignment);
  return make_dense_elements(type, resource.bytes(size));
}

mlir::Attribute AttributeReader::read_builtin_attribute(ByteReader& reader) {
  const size_t offset = reader.offset();
  const uint64_t code = reader.varint();
  const auto unknown = [this] { return mlir::LocationAttr(mlir::UnknownLoc::get(context_)); };
  const auto read_location = [&] { return read_as<mlir::LocationAttr>(reader, "a location"); };
  const auto read_locations = [&] {
    std::vector<mlir::Location> locations;
    const size_t count = reader.count();
    for (size_t i = 0; i < count && !failure_; ++i) {
      if (const mlir::LocationAttr each = read_location()) {
        locations.emplace_back(each);
      }
    }
    return locations;
  };
  switch (code) {
    case 0:
      return mlir::ArrayAttr::get(context_, read_attributes(reader));
    case 1:
      return read_dictionary(reader, offset);
    case 2:
      return mlir::StringAttr::get(context_, ref(read_string(reader)));
    case 3: {
      const std::string_view text = read_string(reader);
      const mlir::Type type = read_type(reader);
      return type ? mlir::StringAttr::get(ref(text), type) : mlir::StringAttr();
    }
    case 4: {
      const auto root = read_as<mlir::StringAttr>(reader, "a symbol's name");
      return root ? mlir::FlatSymbolRefAttr::get(root) : mlir::FlatSymbolRefAttr();
    }
    case 5: {
      const auto root = read_as<mlir::StringAttr>(reader, "a symbol's name");
      std::vector<mlir::FlatSymbolRefAttr> nested(reader.count());
      for (mlir::FlatSymbolRefAttr& each : nested) {
        each = read_as<mlir::FlatSymbolRefAttr>(reader, "a symbol");
      }
      return failure_ ? mlir::SymbolRefAttr() : mlir::SymbolRefAttr::get(root, nested);
    }
    case 6: {
      const mlir::Type type = read_type(reader);
      return type ? mlir::TypeAttr::get(type) : mlir::TypeAttr();
    }
    case 7:
      return mlir::UnitAttr::get(context_);
    case 8:
      return read_integer(reader);
    case 9:
      return read_float(reader);
    case 10: {
      const mlir::LocationAttr callee = read_location();
      const mlir::LocationAttr caller = read_location();
      return failure_ ? mlir::LocationAttr() : mlir::LocationAttr(mlir::CallSiteLoc::get(callee, caller));
    }
    case 11: {
      const auto file = read_as<mlir::StringAttr>(reader, "a file name");
      const auto line = static_cast<unsigned>(reader.varint());
      const auto column = static_cast<unsigned>(reader.varint());
      return file ? mlir::LocationAttr(mlir::FileLineColLoc::get(file, line, column)) : mlir::LocationAttr();
    }
    case 12:
      return mlir::FusedLoc::get(context_, read_locations());
    case 13: {
      const std::vector<mlir::Location> locations = read_locations();
      const mlir::Attribute metadata = read_attribute(reader);
      return metadata ? mlir::Attribute(mlir::FusedLoc::get(locations, metadata, context_)) : mlir::Attribute();
    }
    case 14: {
      const auto name = read_as<mlir::StringAttr>(reader, "a location's name");
      const mlir::LocationAttr child = read_location();
      return failure_ ? mlir::LocationAttr() : mlir::LocationAttr(mlir::NameLoc::get(name, child));
    }
    case 15:
      return unknown();
    case 16:
      return read_dense_resource(reader);
    case 17:
      return read_dense_array(reader);
    case 18:
      return read_dense_elements(reader);
    case 22: {  // a range: the start is kept
      const auto file = read_as<mlir::StringAttr>(reader, "a file name");
      std::vector<uint64_t> numbers(reader.count());
      for (uint64_t& each : numbers) {
        each = reader.varint();
      }
      const unsigned line = numbers.empty() ? 0 : static_cast<unsigned>(numbers[0]);
      const unsigned column = numbers.size() < 2 ? 0 : static_cast<unsigned>(numbers[1]);
      return file ? mlir::LocationAttr(mlir::FileLineColLoc::get(file, line, column)) : mlir::LocationAttr();
    }
    default:
      failure_.unsupported("byte {}: a builtin attribute of kind {}; give the module as text", offset, code);
      return {};
  }
}

mlir::Type AttributeReader::read_tensor(ByteReader& reader, mlir::Attribute encoding) {
  const Ints shape = read_ints(reader);
  const mlir::Type element = read_type(reader);
  if (failure_) {
    return {};
  }
  int64_t elements = 1;
  bool fits = static_cast<int64_t>(shape.size()) <= kMaxDimensions;
  for (const int64_t size : shape) {
    const bool counts = !mlir::ShapedType::isDynamic(size) && size != 0;
    fits = fits && (size >= 0 || mlir::ShapedType::isDynamic(size)) &&
           !(counts && __builtin_mul_overflow(elements, size, &elements));
  }
  if (!fits) {
    failure_.unsupported("byte {}: a tensor has more than {} dimensions, more than 2^63 - 1 elements or a size below 0",
                         reader.offset(), kMaxDimensions);
    return {};
  }
  return mlir::RankedTensorType::getChecked([this] { return mlir::emitError(mlir::UnknownLoc::get(context_)); }, shape,
                                            element, encoding);
}

mlir::Type AttributeReader::read_function(ByteReader& reader) {
  const std::vector<mlir::Type> inputs = read_types(reader);
  const std::vector<mlir::Type> results = read_types(reader);
  return failure_ ? mlir::Type() : mlir::FunctionType::get(context_, inputs, results);
}

mlir::Type AttributeReader::read_tuple(ByteReader& reader) {
  const std::vector<mlir::Type> types = read_types(reader);
  return failure_ ? mlir::Type() : mlir::TupleType::get(context_, types);
}

mlir::Type AttributeReader::read_complex(ByteReader& reader) {
  const mlir::Type element = read_type(reader);
  return element ? mlir::ComplexType::getChecked([this] { return mlir::emitError(mlir::UnknownLoc::get(context_)); },
                                                 element)
                 : mlir::Type();
}

mlir::Type AttributeReader::read_unranked_tensor(ByteReader& reader) {
  const mlir::Type element = read_type(reader);
  return element ? mlir::UnrankedTensorType::getChecked(
                       [this] { return mlir::emitError(mlir::UnknownLoc::get(context_)); }, element)
                 : mlir::Type();
}

mlir::Type AttributeReader::read_builtin_type(ByteReader& reader) {
  const size_t offset = reader.offset();
  const uint64_t code = reader.varint();
  switch (code) {
    case 0: {
      const uint64_t packed = reader.varint();
      const uint64_t width = packed >> 2;
      if (width == 0 || width > 128 || (packed & 3) == 3) {
        failure_.unsupported("byte {}: an integer type of {} bits; expected 1 to 128", offset, width);
        return {};
      }
      return mlir::IntegerType::get(context_, static_cast<unsigned>(width),
                                    static_cast<mlir::IntegerType::SignednessSemantics>(packed & 3));
    }
    case 1:
      return mlir::IndexType::get(context_);
    case 2:
      return read_function(reader);
    case 3:
      return mlir::BFloat16Type::get(context_);
    case 4:
      return mlir::Float16Type::get(context_);
    case 5:
      return mlir::Float32Type::get(context_);
    case 6:
      return mlir::Float64Type::get(context_);
    case 9:
      return read_complex(reader);
    case 12:
      return mlir::NoneType::get(context_);
    case 13:
      return read_tensor(reader, {});
    case 14: {
      const mlir::Attribute encoding = read_attribute(reader);
      return read_tensor(reader, encoding);
    }
    case 15:
      return read_tuple(reader);
    case 18:
      return read_unranked_tensor(reader);
    default:
      failure_.unsupported("byte {}: a builtin type of kind {}, which StableHLO does not have", offset, code);
      return {};
  }
}

}  // namespace flashlift::stablehlo::bytecode
