// Reads attributes and types of stablehlo, chlo and sdy from bytecode, as the text that their printers write.
#include <bit>
#include <cmath>
#include <cstdlib>

#include <fmt/ranges.h>

#include "llvm/ADT/StringExtras.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/bytecode/attributes.h"
#include "stablehlo/bytecode/spelling.h"
#include "stablehlo/reader/attributes.h"

namespace flashlift::stablehlo::bytecode {
namespace {

// Removes the word before the bracket of "mesh_axis<name = ...>".
std::string_view without_mnemonic(std::string_view text, std::string_view mnemonic) {
  return text.starts_with(mnemonic) ? text.substr(mnemonic.size()) : text;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  llvm::raw_string_ostream stream(out);
  llvm::printEscapedString(llvm::StringRef(text.data(), text.size()), stream);
  stream << '"';
  return out;
}

std::string list_of(const std::vector<int64_t>& list) { return fmt::format("[{}]", fmt::join(list, ", ")); }

std::string number_text(double number) {
  const std::string brief = fmt::format("{:e}", number);
  return std::strtod(brief.c_str(), nullptr) == number ? brief : fmt::format("{:.17e}", number);
}

}  // namespace

mlir::Attribute AttributeReader::spelled(std::string_view dialect, const std::string& text) {
  spelled_ += text.size();
  if (text.size() > kMaxSpelling || spelled_ > kMaxAllSpellings) {
    failure_.unsupported("an attribute of '{}' is more than {} characters long", dialect, kMaxSpelling);
  }
  if (failure_) {
    return {};
  }
  return mlir::OpaqueAttr::get(mlir::StringAttr::get(context_, llvm::StringRef(dialect.data(), dialect.size())), text,
                               mlir::NoneType::get(context_));
}

mlir::Type AttributeReader::spelled_type(const std::string& text) {
  spelled_ += text.size();
  if (text.size() > kMaxSpelling || spelled_ > kMaxAllSpellings) {
    failure_.unsupported("a type of 'stablehlo' is more than {} characters long", kMaxSpelling);
  }
  return failure_ ? mlir::Type() : mlir::OpaqueType::get(mlir::StringAttr::get(context_, "stablehlo"), text);
}

mlir::Attribute AttributeReader::enumerated(std::string_view dialect, std::string_view mnemonic, uint64_t value,
                                            std::initializer_list<std::string_view> names) {
  if (value >= names.size() || names.begin()[value].empty()) {
    failure_.unsupported("a {} of number {} is not known", mnemonic, value);
    return {};
  }
  return spelled(dialect, fmt::format("{} {}", mnemonic, names.begin()[value]));
}

std::string AttributeReader::text_of(mlir::Type type) {
  std::string text;
  if (type && !failure_) {
    llvm::raw_string_ostream(text) << type;
  }
  spelled_ += text.size();
  if (spelled_ > kMaxAllSpellings) {
    failure_.unsupported("types in attributes are more than {} characters long", kMaxAllSpellings);
  }
  return text;
}

std::string AttributeReader::text_of(mlir::Attribute attribute) {
  if (failure_) {
    return {};
  }
  if (const auto opaque = mlir::dyn_cast<mlir::OpaqueAttr>(attribute)) {
    spelled_ += opaque.getAttrData().size();
    if (spelled_ > kMaxAllSpellings) {
      failure_.unsupported("attributes in attributes are more than {} characters long", kMaxAllSpellings);
      return {};
    }
    return opaque.getAttrData().str();
  }
  if (!mlir::isa<mlir::StringAttr, mlir::SymbolRefAttr, mlir::DenseElementsAttr, mlir::DenseArrayAttr>(attribute)) {
    failure_.invalid("an attribute holds one of a kind that does not belong there");
    return {};
  }
  std::string text;
  llvm::raw_string_ostream(text) << attribute;
  spelled_ += text.size();
  return text;
}

std::string AttributeReader::read_texts_of(ByteReader& reader) {
  std::string text;
  const size_t count = reader.count();
  for (size_t i = 0; i < count && !failure_; ++i) {
    text += (i == 0 ? "" : ", ") + read_text_of(reader);
    if (text.size() > kMaxSpelling) {
      failure_.unsupported("byte {}: a list is more than {} characters long", reader.offset(), kMaxSpelling);
    }
  }
  return text;
}

mlir::Attribute AttributeReader::read_alias(ByteReader& reader) {
  const Ints output = read_ints(reader);
  const int64_t operand = reader.signed_varint();
  return spelled("stablehlo", fmt::format("output_operand_alias<output_tuple_indices = {}, operand_index = {}, "
                                          "operand_tuple_indices = {}>",
                                          list_of(output), operand, list_of(read_ints(reader))));
}

mlir::Attribute AttributeReader::read_bounds(ByteReader& reader) {
  std::vector<std::string> bounds;
  for (const int64_t bound : read_ints(reader)) {
    bounds.push_back(mlir::ShapedType::isDynamic(bound) ? "?" : std::to_string(bound));
  }
  return spelled("stablehlo", fmt::format("bounds<{}>", fmt::join(bounds, ", ")));
}

mlir::Attribute AttributeReader::read_accuracy_mode(ByteReader& reader) {
  static constexpr std::string_view kModes[] = {"DEFAULT", "HIGHEST", "TOLERANCE"};
  const uint64_t mode = reader.varint();
  if (mode >= std::size(kModes)) {
    failure_.unsupported("byte {}: an accuracy of mode {} is not known", reader.offset(), mode);
    return {};
  }
  return spelled("stablehlo", fmt::format("result_accuracy_mode<{}>", kModes[mode]));
}

mlir::Attribute AttributeReader::read_accuracy(ByteReader& reader) {
  const auto atol = std::bit_cast<double>(read_bits(reader, 64));
  const auto rtol = std::bit_cast<double>(read_bits(reader, 64));
  const int64_t ulps = reader.signed_varint();
  if (!std::isfinite(atol) || !std::isfinite(rtol)) {
    failure_.invalid("byte {}: expected a finite accuracy, got {} and {}", reader.offset(), atol, rtol);
  }
  std::string fields;
  if (atol != 0) {
    fields += fmt::format("atol = {}, ", number_text(atol));
  }
  if (rtol != 0) {
    fields += fmt::format("rtol = {}, ", number_text(rtol));
  }
  if (ulps != 0) {
    fields += fmt::format("ulps = {}, ", ulps);
  }
  return spelled("stablehlo", fmt::format("result_accuracy<{}mode = #stablehlo.{}>", fields, read_text_of(reader)));
}

mlir::Attribute AttributeReader::spell_axis_ref(const std::string& name, const std::string& part) {
  return spelled("stablehlo",
                 fmt::format("axis_ref<name = {}{}{}>", name, part.empty() ? "" : ", sub_axis_info = ", part));
}

std::string AttributeReader::read_mesh_name(ByteReader& reader) {
  const mlir::Attribute mesh = read_attribute(reader);
  if (const auto name = mlir::dyn_cast_or_null<mlir::StringAttr>(mesh)) {
    std::string text;
    llvm::raw_string_ostream(text) << mlir::FlatSymbolRefAttr::get(name);
    return text;
  }
  const std::string text = mesh ? text_of(mesh) : std::string();
  return text.starts_with("mesh<") ? "#stablehlo." + text : text;
}

mlir::Attribute AttributeReader::spell_mesh_axes(const std::string& mesh, llvm::ArrayRef<mlir::Attribute> axes) {
  std::string list;
  for (const mlir::Attribute axis : axes) {
    list += (list.empty() ? "#stablehlo." : ", #stablehlo.") + text_of(axis);
    if (list.size() > kMaxSpelling || failure_) {
      failure_.unsupported("a list of axes is more than {} characters long", kMaxSpelling);
      return {};
    }
  }
  return spelled("stablehlo", fmt::format("replica_group_mesh_axes<mesh = {}, axes = [{}]>", mesh, list));
}

mlir::Attribute AttributeReader::spell_mesh(llvm::ArrayRef<mlir::Attribute> axes, mlir::Attribute devices) {
  std::string list;
  for (const mlir::Attribute axis : axes) {
    list += (list.empty() ? "" : ", ");
    list += without_mnemonic(text_of(axis), "mesh_axis");
    if (list.size() > kMaxSpelling || failure_) {
      failure_.unsupported("a list of axes is more than {} characters long", kMaxSpelling);
      return {};
    }
  }
  return spelled("stablehlo", fmt::format("mesh<axes=[{}]{}{}>", list, devices ? ", device_ids=" : "",
                                          devices ? text_of(devices) : ""));
}

mlir::Type AttributeReader::read_future(ByteReader& reader) {
  std::string list;
  for (const mlir::Type type : read_types(reader)) {
    list += (list.empty() ? "" : ", ") + text_of(type);
  }
  return spelled_type(fmt::format("future<{}>", list));
}

mlir::Attribute AttributeReader::read_stablehlo_attribute(ByteReader& reader) {
  const size_t offset = reader.offset();
  const uint64_t code = reader.varint();
  const auto read_optional = [&] { return reader.byte() != 0 ? read_attribute(reader) : mlir::Attribute(); };
  switch (code) {
    case 1: {
      const int64_t handle = reader.signed_varint();
      return spelled("stablehlo",
                     fmt::format("channel_handle<handle = {}, type = {}>", handle, reader.signed_varint()));
    }
    case 2:
      return enumerated("stablehlo", "comparison_direction", reader.varint(), {"EQ", "NE", "GE", "GT", "LE", "LT"});
    case 3:
      return enumerated("stablehlo", "comparison_type", reader.varint(),
                        {"NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"});
    case 4: {
      ConvDims dims;
      dims.input_batch = reader.signed_varint();
      dims.input_feature = reader.signed_varint();
      dims.input_spatial = read_ints(reader);
      dims.kernel_input = reader.signed_varint();
      dims.kernel_output = reader.signed_varint();
      dims.kernel_spatial = read_ints(reader);
      dims.output_batch = reader.signed_varint();
      dims.output_feature = reader.signed_varint();
      dims.output_spatial = read_ints(reader);
      const std::string text = spell_conv(dims);
      return text.empty() ? mlir::Attribute() : spelled("stablehlo", text);
    }
    case 5: {
      DotDims dims;
      dims.lhs_batch = read_ints(reader);
      dims.rhs_batch = read_ints(reader);
      dims.lhs_contract = read_ints(reader);
      dims.rhs_contract = read_ints(reader);
      return spelled("stablehlo", print_dot(dims));
    }
    case 6:
      return enumerated("stablehlo", "fft_type", reader.varint(), {"FFT", "IFFT", "RFFT", "IRFFT"});
    case 7: {
      GatherDims dims;
      dims.offset_dims = read_ints(reader);
      dims.collapsed_slice_dims = read_ints(reader);
      dims.operand_batching_dims = read_ints(reader);
      dims.start_indices_batching_dims = read_ints(reader);
      dims.start_index_map = read_ints(reader);
      dims.index_vector_dim = reader.signed_varint();
      return spelled("stablehlo", print_gather(dims));
    }
    case 8:
      return enumerated("stablehlo", "precision", reader.varint(), {"DEFAULT", "HIGH", "HIGHEST"});
    case 9:
      return enumerated("stablehlo", "rng_algorithm", reader.varint(), {"DEFAULT", "THREE_FRY", "PHILOX"});
    case 10:
      return enumerated("stablehlo", "rng_distribution", reader.varint(), {"", "UNIFORM", "NORMAL"});
    case 11: {
      const Ints update = read_ints(reader);
      const Ints inserted = read_ints(reader);
      const Ints input_batch = read_ints(reader);
      const Ints index_batch = read_ints(reader);
      const Ints operand = read_ints(reader);
      return spelled("stablehlo",
                     spell_scatter({update, inserted, input_batch, index_batch, operand, reader.signed_varint()}));
    }
    case 12:
      return enumerated("stablehlo", "transpose", reader.varint(),
                        {"TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"});
    case 13:
      return read_bounds(reader);
    case 14:
      return read_alias(reader);
    case 15: {
      DotAlgorithm algorithm;
      algorithm.lhs = text_of(read_type(reader));
      algorithm.rhs = text_of(read_type(reader));
      algorithm.accumulation = text_of(read_type(reader));
      algorithm.lhs_components = reader.signed_varint();
      algorithm.rhs_components = reader.signed_varint();
      algorithm.operations = reader.signed_varint();
      algorithm.is_imprecise = reader.byte() != 0;
      return spelled("stablehlo", spell_algorithm(algorithm));
    }
    case 16:
      return read_accuracy_mode(reader);
    case 17:
      return read_accuracy(reader);
    case 18: {
      const std::string mesh = read_mesh_name(reader);
      const std::vector<mlir::Attribute> axes = read_attributes(reader);
      return spell_mesh_axes(mesh, axes);
    }
    case 19: {
      const int64_t before = reader.signed_varint();
      return spelled("stablehlo", fmt::format("({}){}", before, reader.signed_varint()));
    }
    case 20: {
      const std::string name = quoted(read_string(reader));
      const mlir::Attribute part = read_optional();
      return spell_axis_ref(name, part ? text_of(part) : "");
    }
    case 21: {
      const std::string name = quoted(read_string(reader));
      return spelled("stablehlo", fmt::format("mesh_axis<name = {}, size = {}>", name, reader.signed_varint()));
    }
    case 22: {
      const auto axes = read_as<mlir::ArrayAttr>(reader, "a list of axes");
      const mlir::Attribute devices = read_optional();
      return axes ? spell_mesh(axes.getValue(), devices) : mlir::Attribute();
    }
    default:
      failure_.unsupported("byte {}: an attribute of stablehlo of kind {} is newer than version 1.20", offset, code);
      return {};
  }
}

mlir::Type AttributeReader::read_stablehlo_type(ByteReader& reader) {
  const size_t offset = reader.offset();
  switch (const uint64_t code = reader.varint()) {
    case 0:
      return spelled_type("token");
    case 1:
      return read_future(reader);
    default:
      failure_.unsupported("byte {}: a type of stablehlo of kind {} is newer than version 1.20", offset, code);
      return {};
  }
}

mlir::Attribute AttributeReader::read_chlo_attribute(ByteReader& reader) {
  const size_t offset = reader.offset();
  switch (const uint64_t code = reader.varint()) {
    case 0:
      return enumerated("chlo", "comparison_direction", reader.varint(), {"EQ", "NE", "GE", "GT", "LE", "LT"});
    case 1:
      return enumerated("chlo", "comparison_type", reader.varint(),
                        {"NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"});
    default:
      failure_.unsupported("byte {}: an attribute of chlo of kind {}; give the module as text, or as VHLO", offset,
                           code);
      return {};
  }
}

// Reads the mesh, the dimensions' shardings, and the lists of replicated and unreduced axes.
std::string AttributeReader::spell_sharding(ByteReader& reader, int axes_lists, bool has_reduction) {
  const std::string mesh = read_text_of(reader);
  std::string text = fmt::format("sharding<{}, [{}]", mesh, read_texts_of(reader));
  static constexpr std::string_view kNames[] = {"replicated", "unreduced"};
  // The first list holds replicated axes, the last one unreduced axes. A third list holds axes that are neither.
  for (int i = 0; i < axes_lists; ++i) {
    const std::string axes = read_texts_of(reader);
    if (!axes.empty()) {
      text += fmt::format(", {}={{{}}}", kNames[std::min(i, 1)], axes);
    }
  }
  if (has_reduction && reader.signed_varint() != 0) {
    failure_.unsupported("byte {}: a sharding with a reduction other than a sum", reader.offset());
  }
  return text + ">";
}

std::string AttributeReader::spell_sharding_rule(ByteReader& reader) {
  const auto factor = [](int64_t index) {
    return index < 18 ? std::string(1, static_cast<char>('i' + index)) : fmt::format("z_{}", index - 17);
  };
  const Ints sizes = read_ints(reader);
  const std::string operands = read_texts_of(reader);
  const std::string results = read_texts_of(reader);
  std::string text = fmt::format("op_sharding_rule<({})->({}) {{", operands, results);
  for (size_t i = 0; i < sizes.size(); ++i) {
    text += fmt::format("{}{}={}", i == 0 ? "" : ", ", factor(static_cast<int64_t>(i)), sizes[i]);
  }
  text += "}";
  for (const char* name : {"reduction", "need_replication", "permutation", "blocked_propagation"}) {
    std::string list;
    for (const int64_t index : read_ints(reader)) {
      list += (list.empty() ? "" : ", ") + factor(std::max<int64_t>(index, 0));
    }
    if (!list.empty()) {
      text += fmt::format(" {}={{{}}}", name, list);
    }
  }
  return text + (reader.byte() != 0 ? ", custom>" : ">");
}

mlir::Attribute AttributeReader::read_sdy_attribute(ByteReader& reader) {
  const size_t offset = reader.offset();
  const uint64_t code = reader.varint();
  switch (code) {
    case 0:
      return spelled("sdy", "manual_axes{" + read_texts_of(reader) + "}");
    case 1: {
      const std::string name = quoted(read_string(reader));
      return spelled("sdy", fmt::format("{}={}", name, reader.signed_varint()));
    }
    case 2: {
      std::string text = "mesh<[" + read_texts_of(reader) + "]";
      if (const Ints devices = read_ints(reader); !devices.empty()) {
        text += ", device_ids=" + list_of(devices);
      }
      return spelled("sdy", text + ">");
    }
    case 3: {
      const int64_t before = reader.signed_varint();
      return spelled("sdy", fmt::format(":({}){}", before, reader.signed_varint()));
    }
    case 4: {
      const std::string name = quoted(read_string(reader));
      const mlir::Attribute part = read_optional_attribute(reader);
      return spelled("sdy", fmt::format("{}{}", name, part ? text_of(part) : ""));
    }
    case 5: {
      std::string text = "{" + read_texts_of(reader);
      const bool is_closed = reader.byte() != 0;
      text += is_closed ? "}" : text.size() == 1 ? "?}" : ", ?}";
      bool has_priority = false;
      const uint64_t priority = reader.varint_with_flag(has_priority);
      return spelled("sdy", has_priority ? fmt::format("{}p{}", text, priority) : text);
    }
    case 6:
      return spelled("sdy", spell_sharding(reader, 1, false));
    case 7:
    case 16: {
      std::string text;
      const size_t count = reader.count();
      for (size_t i = 0; i < count && !failure_ && text.size() <= kMaxSpelling; ++i) {
        text += i == 0 ? "" : ", ";
        text += without_mnemonic(read_text_of(reader), "sharding");
      }
      return spelled("sdy", "sharding_per_value<[" + text + "]>");
    }
    case 8: {
      std::string text;
      for (const int64_t index : read_ints(reader)) {
        text += index < 18 ? std::string(1, static_cast<char>('i' + std::max<int64_t>(index, 0)))
                           : fmt::format("z_{}", index - 17);
      }
      return text.empty() ? mlir::Attribute() : spelled("sdy", text);
    }
    case 9:
      return spelled("sdy", "[" + read_texts_of(reader) + "]");
    case 10:
      return spelled("sdy", spell_sharding_rule(reader));
    case 11:
      return spelled("sdy", "{" + read_texts_of(reader) + "}");
    case 12:
      return spelled("sdy", "list_of_axis_ref_lists[" + read_texts_of(reader) + "]");
    case 13: {
      const std::string axes = read_texts_of(reader);
      const int64_t from = reader.signed_varint();
      return spelled("sdy", fmt::format("{{{}}}: {}->{}", axes, from, reader.signed_varint()));
    }
    case 14:
      return spelled("sdy", "all_to_all_param_list[" + read_texts_of(reader) + "]");
    case 15:
      return spelled("sdy", spell_sharding(reader, 2, false));
    case 17:
      return spelled("sdy", spell_sharding(reader, 2, true));
    default:
      failure_.unsupported("byte {}: an attribute of sdy of kind {} is not known", offset, code);
      return {};
  }
}

}  // namespace flashlift::stablehlo::bytecode
