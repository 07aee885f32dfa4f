// Reads attributes and types of a bytecode file as MLIR's builtin ones. Those of stablehlo, chlo and sdy become text in
// the spelling of reader/attributes.h. VHLO's become those that they stand for.
#pragma once

#include <string>
#include <vector>

#include "mlir/IR/Attributes.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Location.h"
#include "mlir/IR/MLIRContext.h"
#include "stablehlo/bytecode/container.h"

namespace flashlift::stablehlo::bytecode {

inline constexpr int kMaxNestedEntries = 1000;               // nesting of attributes
inline constexpr size_t kMaxSpelling = size_t{1} << 24;      // of one attribute that is kept as text
inline constexpr size_t kMaxAllSpellings = size_t{1} << 28;  // of all together

// Reads each entry once, when it is needed. Returns null after a failure.
class AttributeReader {
 public:
  AttributeReader(const Container& container, mlir::MLIRContext* context, Failure& failure);

  mlir::Attribute attribute(uint64_t index);
  mlir::Type type(uint64_t index);
  // A location of an unknown kind, from a later MLIR, becomes an unknown location.
  mlir::Location location(uint64_t index);

  // Reads the index of an entry, then the entry. Not for locations: MLIR prints one only where locations belong.
  mlir::Attribute read_attribute(ByteReader& reader) { return value(reader, reader.varint()); }
  mlir::Type read_type(ByteReader& reader) { return type(reader.varint()); }
  // Null if the file has none.
  mlir::Attribute read_optional_attribute(ByteReader& reader);

 private:
  enum class State : uint8_t { kUnread, kOpen, kRead };
  template <typename T>
  struct Slot {
    State state = State::kUnread;
    T value;
  };
  using Ints = std::vector<int64_t>;

  mlir::Attribute value(const ByteReader& reader, uint64_t index);
  template <typename T, typename Read>
  T resolve(uint64_t index, const std::vector<Entry>& entries, std::vector<Slot<T>>& slots, std::string_view what,
            Read read);
  mlir::Attribute read_attribute_entry(const Entry& entry, ByteReader& reader);
  mlir::Type read_type_entry(const Entry& entry, ByteReader& reader);
  template <typename T, typename Parse>
  T read_text(ByteReader& reader, Parse parse);

  // attributes_builtin.cpp
  mlir::Attribute read_builtin_attribute(ByteReader& reader);
  mlir::Type read_builtin_type(ByteReader& reader);
  mlir::Attribute read_dense_array(ByteReader& reader);
  mlir::Attribute read_dense_resource(ByteReader& reader);
  // Forms that builtin and vhlo share.
  mlir::Attribute read_dictionary(ByteReader& reader, size_t offset);  // its entry begins at offset
  mlir::Attribute read_integer(ByteReader& reader);
  mlir::Attribute read_float(ByteReader& reader);
  mlir::Attribute read_dense_elements(ByteReader& reader);
  mlir::Attribute make_dense_elements(mlir::Type type, std::string_view bytes);
  uint64_t read_bits(ByteReader& reader, unsigned width);
  mlir::Type read_tensor(ByteReader& reader, mlir::Attribute encoding);
  mlir::Type read_function(ByteReader& reader);
  mlir::Type read_tuple(ByteReader& reader);
  mlir::Type read_complex(ByteReader& reader);
  mlir::Type read_unranked_tensor(ByteReader& reader);

  // attributes_vhlo.cpp
  mlir::Attribute read_vhlo_attribute(ByteReader& reader);
  mlir::Type read_vhlo_type(ByteReader& reader);
  mlir::Type read_quantized(ByteReader& reader, bool per_axis);

  // attributes_text.cpp
  mlir::Attribute read_stablehlo_attribute(ByteReader& reader);
  mlir::Type read_stablehlo_type(ByteReader& reader);
  mlir::Attribute read_chlo_attribute(ByteReader& reader);
  mlir::Attribute read_sdy_attribute(ByteReader& reader);
  std::string spell_sharding(ByteReader& reader, int axes_lists, bool has_reduction);
  std::string spell_sharding_rule(ByteReader& reader);
  mlir::Attribute spelled(std::string_view dialect, const std::string& text);
  mlir::Type spelled_type(const std::string& text);
  mlir::Attribute enumerated(std::string_view dialect, std::string_view mnemonic, uint64_t value,
                             std::initializer_list<std::string_view> names);
  mlir::Attribute read_alias(ByteReader& reader);
  mlir::Attribute read_bounds(ByteReader& reader);
  mlir::Attribute read_accuracy_mode(ByteReader& reader);
  mlir::Attribute read_accuracy(ByteReader& reader);
  mlir::Attribute spell_axis_ref(const std::string& name, const std::string& part);
  std::string read_mesh_name(ByteReader& reader);
  mlir::Attribute spell_mesh_axes(const std::string& mesh, llvm::ArrayRef<mlir::Attribute> axes);
  mlir::Attribute spell_mesh(llvm::ArrayRef<mlir::Attribute> axes, mlir::Attribute devices);
  mlir::Type read_future(ByteReader& reader);
  std::string text_of(mlir::Type type);
  // The text of an attribute within the text of another one.
  std::string text_of(mlir::Attribute attribute);
  std::string read_text_of(ByteReader& reader) { return text_of(read_attribute(reader)); }
  // Joined by ", ".
  std::string read_texts_of(ByteReader& reader);

  std::string_view read_string(ByteReader& reader) { return bytecode::read_string(reader, container_); }
  Ints read_ints(ByteReader& reader);
  std::vector<mlir::Attribute> read_attributes(ByteReader& reader);
  std::vector<mlir::Type> read_types(ByteReader& reader);
  template <typename T>
  T read_as(ByteReader& reader, std::string_view expected);

  const Container& container_;
  mlir::MLIRContext* context_;
  Failure& failure_;
  std::vector<Slot<mlir::Attribute>> attributes_;
  std::vector<Slot<mlir::Type>> types_;
  int depth_ = 0;
  size_t spelled_ = 0;
};

template <typename T>
T AttributeReader::read_as(ByteReader& reader, std::string_view expected) {
  const size_t offset = reader.offset();
  const T result = mlir::dyn_cast_or_null<T>(attribute(reader.varint()));
  if (!result) {
    failure_.invalid("byte {}: expected {}", offset, expected);
  }
  return result;
}

}  // namespace flashlift::stablehlo::bytecode
