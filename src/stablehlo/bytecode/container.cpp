#include "stablehlo/bytecode/container.h"

#include <algorithm>

namespace flashlift::stablehlo::bytecode {
namespace {

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == '$';
  });
}

class TableReader {
 public:
  TableReader(Container& container, Failure& failure) : container_(container), failure_(failure) {}

  void read(std::string_view bytes) {
    ByteReader reader(bytes, 0, failure_);
    if (reader.bytes(kMagic.size()) != kMagic) {
      failure_.invalid("expected MLIR bytecode, which begins with the bytes 4D 4C EF 52");
      return;
    }
    container_.version = reader.varint();
    container_.producer = reader.zero_ended();
    if (container_.version > kNewestVersion) {
      failure_.unsupported(
          "this is MLIR bytecode of version {}; Flashlift reads versions up to {}: write it for an older version, or "
          "give the module as text",
          container_.version, kNewestVersion);
      return;
    }
    while (!reader.empty()) {
      const size_t begin = reader.offset();
      Range content;
      const Section section = read_section(reader, content);
      const auto index = static_cast<size_t>(section);
      if (reader.ok() && found_[index]) {
        failure_.invalid("byte {}: section {} occurs twice", begin, index);
      }
      found_[index] = true;
      sections_[index] = content;
    }
    for (const Section needed : {Section::kStrings, Section::kDialects, Section::kAttributes,
                                 Section::kAttributeOffsets, Section::kOperations}) {
      if (!failure_ && !found_[static_cast<size_t>(needed)]) {
        failure_.invalid("section {} is missing: the bytecode is cut off or damaged", static_cast<int>(needed));
      }
    }
    container_.ir = section(Section::kOperations);
    read_strings();
    read_dialects();
    read_entries();
    read_properties();
    read_resources();
  }

 private:
  const Range& section(Section which) const { return sections_[static_cast<size_t>(which)]; }
  ByteReader open(Section which) { return section(which).reader(failure_); }

  void read_strings() {
    ByteReader reader = open(Section::kStrings);
    const size_t count = reader.count();
    std::vector<uint64_t> sizes;
    for (size_t i = 0; i < count && reader.ok(); ++i) {
      sizes.push_back(reader.varint());
    }
    // Sizes are stored in reverse order. Each string ends in a zero byte.
    for (auto size = sizes.rbegin(); size != sizes.rend() && reader.ok(); ++size) {
      const std::string_view text = reader.bytes(*size);
      if (reader.ok() && (text.empty() || text.back() != '\0')) {
        failure_.invalid("byte {}: expected a string that ends in a zero byte", reader.offset());
      } else if (reader.ok()) {
        container_.strings.push_back(text.substr(0, text.size() - 1));
      }
    }
    expect_end(reader);
  }

  void expect_end(const ByteReader& reader) {
    if (!reader.empty()) {
      failure_.invalid("byte {}: expected the section's end", reader.offset());
    }
  }

  std::string_view string_at(uint64_t index, size_t offset) {
    if (index >= container_.strings.size()) {
      failure_.invalid("byte {}: there is no string {}", offset, index);
      return {};
    }
    return container_.strings[index];
  }

  std::string_view read_dialect(ByteReader& reader) {
    const uint64_t index = reader.varint();
    if (index >= dialects_.size()) {
      failure_.invalid("byte {}: there is no dialect {}", reader.offset(), index);
      return {};
    }
    return dialects_[index];
  }

  void read_dialects() {
    ByteReader reader = open(Section::kDialects);
    const size_t count = reader.count();
    for (size_t i = 0; i < count && reader.ok(); ++i) {
      bool has_version = false;
      const uint64_t name =
          container_.version < kVersionedDialects ? reader.varint() : reader.varint_with_flag(has_version);
      dialects_.push_back(string_at(name, reader.offset()));
      Range ignored;
      if (has_version && read_section(reader, ignored) != Section::kDialectVersions) {
        failure_.invalid("byte {}: expected a dialect's version", reader.offset());
      }
    }
    if (container_.version >= kArgumentLocations) {
      (void)reader.varint();  // the number of operations that follow
    }
    while (!reader.empty()) {
      const std::string_view dialect = read_dialect(reader);
      const size_t operations = reader.count();
      for (size_t i = 0; i < operations && reader.ok(); ++i) {
        bool is_registered = true;
        const uint64_t name =
            container_.version < kOwnProperties ? reader.varint() : reader.varint_with_flag(is_registered);
        const std::string_view operation = string_at(name, reader.offset());
        if (!is_name(dialect) || !is_name(operation)) {
          failure_.invalid("byte {}: expected the name of an operation, of letters, digits, '_', '-', '.' and '$'",
                           reader.offset());
        }
        container_.operations.push_back({dialect, operation, is_registered});
      }
    }
  }

  void read_entries() {
    ByteReader reader = open(Section::kAttributeOffsets);
    ByteReader data = open(Section::kAttributes);
    const size_t attributes = reader.count();
    const size_t types = reader.count();
    read_entries(reader, data, attributes, container_.attributes);
    read_entries(reader, data, types, container_.types);
    expect_end(reader);
  }

  void read_entries(ByteReader& reader, ByteReader& data, size_t wanted, std::vector<Entry>& entries) {
    while (entries.size() < wanted && reader.ok()) {
      const std::string_view dialect = read_dialect(reader);
      const size_t count = reader.count();
      if (count > wanted - entries.size()) {
        failure_.invalid("byte {}: expected {} more attributes or types, got {}", reader.offset(),
                         wanted - entries.size(), count);
      }
      for (size_t i = 0; i < count && reader.ok(); ++i) {
        bool has_own_form = false;
        const uint64_t size = reader.varint_with_flag(has_own_form);
        const size_t offset = data.offset();
        entries.push_back({dialect, !has_own_form, {data.bytes(size), offset}});
      }
    }
  }

  void read_properties() {
    if (!found_[static_cast<size_t>(Section::kProperties)]) {
      return;
    }
    ByteReader reader = open(Section::kProperties);
    const size_t count = reader.count();
    for (size_t i = 0; i < count && reader.ok(); ++i) {
      const uint64_t size = reader.varint();
      const size_t offset = reader.offset();
      container_.properties.push_back({reader.bytes(size), offset});
    }
    expect_end(reader);
  }

  // Resources of external providers, which no attribute names, come first, then those of dialects.
  void read_resources() {
    if (!found_[static_cast<size_t>(Section::kResourceOffsets)]) {
      return;
    }
    ByteReader reader = open(Section::kResourceOffsets);
    ByteReader data = open(Section::kResources);
    const size_t external = reader.count();
    for (size_t group = 0; !reader.empty(); ++group) {
      if (group < external) {
        (void)reader.varint();
      } else {
        (void)read_dialect(reader);
      }
      const size_t count = reader.count();
      for (size_t i = 0; i < count && reader.ok(); ++i) {
        (void)reader.varint();  // its name
        const uint64_t size = reader.varint();
        (void)reader.byte();  // its kind
        const size_t offset = data.offset();
        const Range range{data.bytes(size), offset};
        if (group >= external) {
          container_.resources.push_back(range);
        }
      }
    }
  }

  Container& container_;
  Failure& failure_;
  std::array<Range, static_cast<size_t>(Section::kCount)> sections_;
  std::array<bool, static_cast<size_t>(Section::kCount)> found_{};
  std::vector<std::string_view> dialects_;
};

}  // namespace

Section read_section(ByteReader& reader, Range& content) {
  const size_t begin = reader.offset();
  const uint8_t head = reader.byte();
  const uint64_t size = reader.varint();
  const auto index = static_cast<uint8_t>(head & 0x7F);
  if (index >= static_cast<uint8_t>(Section::kCount)) {
    reader.failure().invalid("byte {}: there is no section {}", begin, index);
    return Section::kStrings;
  }
  if ((head & 0x80) != 0) {
    reader.align(reader.varint());
  }
  content.offset = reader.offset();
  content.bytes = reader.bytes(size);
  return static_cast<Section>(index);
}

std::string_view read_string(ByteReader& reader, const Container& container) {
  const uint64_t index = reader.varint();
  if (index >= container.strings.size()) {
    reader.failure().invalid("byte {}: there is no string {}", reader.offset(), index);
    return {};
  }
  return container.strings[index];
}

Container read_container(std::string_view bytes, Failure& failure) {
  Container container;
  TableReader(container, failure).read(bytes);
  return container;
}

}  // namespace flashlift::stablehlo::bytecode
