// The sections and tables of an MLIR bytecode file, without the meaning of operations, attributes and types. Uses no
// MLIR.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "stablehlo/bytecode/stream.h"

namespace flashlift::stablehlo::bytecode {

inline constexpr std::string_view kMagic = "ML\xefR";
inline constexpr uint64_t kNewestVersion = 6;
// The versions of the format that introduced these features.
inline constexpr uint64_t kVersionedDialects = 1;
inline constexpr uint64_t kIsolatedSections = 2;
inline constexpr uint64_t kUseOrders = 3;
inline constexpr uint64_t kArgumentLocations = 4;
inline constexpr uint64_t kOwnProperties = 5;

enum class Section : uint8_t {
  kStrings,
  kDialects,
  kAttributes,
  kAttributeOffsets,
  kOperations,
  kResources,
  kResourceOffsets,
  kDialectVersions,
  kProperties,
  kCount,
};

// A range of the file.
struct Range {
  std::string_view bytes;
  size_t offset = 0;

  ByteReader reader(Failure& failure) const { return {bytes, offset, failure}; }
};

struct OperationEntry {
  std::string_view dialect, name;
  bool is_registered = false;  // at the time of writing, which determines the form of its properties
};

// An attribute or a type.
struct Entry {
  std::string_view dialect;
  bool is_text = false;  // as MLIR text instead of the dialect's own form
  Range range;
};

struct Container {
  uint64_t version = 0;
  std::string_view producer;
  std::vector<std::string_view> strings;
  std::vector<OperationEntry> operations;
  std::vector<Entry> attributes, types;
  std::vector<Range> properties;
  std::vector<Range> resources;  // of dialects, in the order of the attributes' numbers
  Range ir;
};

// Reads the next section: its kind and content.
Section read_section(ByteReader& reader, Range& content);
std::string_view read_string(ByteReader& reader, const Container& container);

// Checks all ranges and indices of the tables. Sets the failure if the file is incomplete or invalid.
Container read_container(std::string_view bytes, Failure& failure);

}  // namespace flashlift::stablehlo::bytecode
