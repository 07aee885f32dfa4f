#include "stablehlo/bytecode/attributes.h"

#include "mlir/AsmParser/AsmParser.h"
#include "stablehlo/reader/text_meter.h"

namespace flashlift::stablehlo::bytecode {

AttributeReader::AttributeReader(const Container& container, mlir::MLIRContext* context, Failure& failure)
    : container_(container),
      context_(context),
      failure_(failure),
      attributes_(container.attributes.size()),
      types_(container.types.size()) {}

template <typename T, typename Read>
T AttributeReader::resolve(uint64_t index, const std::vector<Entry>& entries, std::vector<Slot<T>>& slots,
                           std::string_view what, Read read) {
  if (failure_) {
    return {};
  }
  if (index >= entries.size()) {
    failure_.invalid("there is no {} {} among {}: the bytecode is damaged", what, index, entries.size());
    return {};
  }
  if (slots[index].state == State::kRead) {
    return slots[index].value;
  }
  if (slots[index].state == State::kOpen) {
    failure_.invalid("byte {}: this {} contains itself", entries[index].range.offset, what);
    return {};
  }
  if (depth_ >= kMaxNestedEntries) {
    failure_.unsupported("byte {}: attributes or types are nested more than {} deep", entries[index].range.offset,
                         kMaxNestedEntries);
    return {};
  }
  slots[index].state = State::kOpen;
  ++depth_;
  ByteReader reader = entries[index].range.reader(failure_);
  const T value = read(entries[index], reader);
  --depth_;
  if (!value) {
    // If MLIR refused the text, its diagnostic is more precise.
    failure_.invalid("byte {}: not a valid {} of '{}'", entries[index].range.offset, what, entries[index].dialect);
  } else if (!reader.empty()) {
    failure_.invalid("byte {}: expected the end of this {} of '{}'", reader.offset(), what, entries[index].dialect);
  }
  if (failure_) {
    return {};
  }
  slots[index] = {State::kRead, value};
  return value;
}

mlir::Attribute AttributeReader::attribute(uint64_t index) {
  return resolve(index, container_.attributes, attributes_, "attribute",
                 [this](const Entry& entry, ByteReader& reader) { return read_attribute_entry(entry, reader); });
}

mlir::Type AttributeReader::type(uint64_t index) {
  return resolve(index, container_.types, types_, "type",
                 [this](const Entry& entry, ByteReader& reader) { return read_type_entry(entry, reader); });
}

mlir::Location AttributeReader::location(uint64_t index) {
  const auto found = mlir::dyn_cast_or_null<mlir::LocationAttr>(attribute(index));
  return found ? mlir::Location(found) : mlir::Location(mlir::UnknownLoc::get(context_));
}

template <typename T, typename Parse>
T AttributeReader::read_text(ByteReader& reader, Parse parse) {
  const size_t offset = reader.offset();
  const std::string_view text = reader.zero_ended();
  if (failure_ || text.empty()) {
    return {};
  }
  if (const Status measured = measure_text(text, fmt::format("{}, byte {}", failure_.name(), offset)); !measured.ok()) {
    failure_.set(measured.error());
    return {};
  }
  size_t used = 0;
  const T value = parse(llvm::StringRef(text.data(), text.size()), used);
  return used == text.size() ? value : T();
}

mlir::Attribute AttributeReader::read_attribute_entry(const Entry& entry, ByteReader& reader) {
  if (entry.is_text) {
    return read_text<mlir::Attribute>(reader, [this](llvm::StringRef text, size_t& used) {
      return mlir::parseAttribute(text, context_, mlir::Type(), &used, /*isKnownNullTerminated=*/true);
    });
  }
  if (entry.dialect == "builtin") {
    return read_builtin_attribute(reader);
  }
  if (entry.dialect == "vhlo") {
    return read_vhlo_attribute(reader);
  }
  if (entry.dialect == "stablehlo") {
    return read_stablehlo_attribute(reader);
  }
  if (entry.dialect == "chlo") {
    return read_chlo_attribute(reader);
  }
  if (entry.dialect == "sdy") {
    return read_sdy_attribute(reader);
  }
  failure_.unsupported("byte {}: an attribute of the dialect '{}' has a custom encoding; give the module as text",
                       reader.offset(), entry.dialect);
  return {};
}

mlir::Type AttributeReader::read_type_entry(const Entry& entry, ByteReader& reader) {
  if (entry.is_text) {
    return read_text<mlir::Type>(reader, [this](llvm::StringRef text, size_t& used) {
      return mlir::parseType(text, context_, &used, /*isKnownNullTerminated=*/true);
    });
  }
  if (entry.dialect == "builtin") {
    return read_builtin_type(reader);
  }
  if (entry.dialect == "vhlo") {
    return read_vhlo_type(reader);
  }
  if (entry.dialect == "stablehlo") {
    return read_stablehlo_type(reader);
  }
  if (entry.dialect == "quant") {
    failure_.unsupported(
        "byte {}: quantized types are not read from bytecode of stablehlo; give the module as text, or "
        "as VHLO",
        reader.offset());
    return {};
  }
  failure_.unsupported("byte {}: a type of the dialect '{}' has a custom encoding; give the module as text",
                       reader.offset(), entry.dialect);
  return {};
}

mlir::Attribute AttributeReader::read_optional_attribute(ByteReader& reader) {
  bool is_present = false;
  const uint64_t index = reader.varint_with_flag(is_present);
  return is_present ? value(reader, index) : mlir::Attribute();
}

mlir::Attribute AttributeReader::value(const ByteReader& reader, uint64_t index) {
  const mlir::Attribute found = attribute(index);
  if (found && mlir::isa<mlir::LocationAttr>(found)) {
    failure_.invalid("byte {}: expected an attribute other than a location", reader.offset());
    return {};
  }
  return found;
}

AttributeReader::Ints AttributeReader::read_ints(ByteReader& reader) {
  Ints found(reader.count());
  for (int64_t& each : found) {
    each = reader.signed_varint();
  }
  return found;
}

std::vector<mlir::Attribute> AttributeReader::read_attributes(ByteReader& reader) {
  std::vector<mlir::Attribute> found(reader.count());
  for (mlir::Attribute& each : found) {
    each = read_attribute(reader);
  }
  return failure_ ? std::vector<mlir::Attribute>() : found;
}

std::vector<mlir::Type> AttributeReader::read_types(ByteReader& reader) {
  std::vector<mlir::Type> found(reader.count());
  for (mlir::Type& each : found) {
    each = read_type(reader);
  }
  return failure_ ? std::vector<mlir::Type>() : found;
}

}  // namespace flashlift::stablehlo::bytecode
