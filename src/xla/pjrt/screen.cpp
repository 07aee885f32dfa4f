#include "xla/pjrt/screen.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace flashlift::pjrt {
namespace {

constexpr std::string_view kBytecode = "ML\xefR";

bool is_bytecode(std::string_view module) { return module.starts_with(kBytecode); }

bool contains(std::string_view text, std::string_view what) {
  return memmem(text.data(), text.size(), what.data(), what.size()) != nullptr;
}

// Ten times as fast as std::string_view::find.
size_t position(std::string_view text, std::string_view what, size_t from) {
  const void* at =
      from > text.size() ? nullptr : memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return at == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(at) - text.data());
}

// Powers of a constant are exponentials, too.
bool has_exponential(std::string_view module) {
  constexpr std::string_view kName = "exponential";
  for (size_t at = position(module, kName, 0); at != std::string_view::npos;
       at = position(module, kName, at + kName.size())) {
    if (!module.substr(at + kName.size()).starts_with("_minus_one")) {
      return true;
    }
  }
  return contains(module, "power");
}

// A sum of multiplications may be a product, too.
bool has_product(std::string_view module) {
  using namespace std::literals;
  return contains(module, "dot_general") || contains(module, "stablehlo.dot") || contains(module, "dot_v1") ||
         contains(module, "\0dot\0"sv) || (contains(module, "multiply") && contains(module, "reduce"));
}

// Reads protocol buffers just far enough to find fields and to skip others.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : bytes_(bytes) {}

  bool at_end() const { return bytes_.empty(); }

  struct Field {
    uint64_t number = 0;
    uint64_t value = 0;      // of a varint
    std::string_view bytes;  // of a field with a length
  };
  std::optional<Field> next() {
    const auto key = varint();
    if (!key) {
      return std::nullopt;
    }
    Field field{.number = *key >> 3};
    switch (*key & 7) {
      case 0: {
        const auto value = varint();
        field.value = value.value_or(0);
        return value ? std::optional(field) : std::nullopt;
      }
      case 1:
        return take(8, field);
      case 2: {
        const auto size = varint();
        return size ? take(*size, field) : std::nullopt;
      }
      case 5:
        return take(4, field);
      default:
        return std::nullopt;
    }
  }

 private:
  std::optional<uint64_t> varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !bytes_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    return std::nullopt;
  }

  std::optional<Field> take(uint64_t size, Field field) {
    if (size > bytes_.size()) {
      return std::nullopt;
    }
    field.bytes = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return field;
  }

  std::string_view bytes_;
};

// Calls visit(field) for each field of a message with this number. False where the message is none, or visit() says so.
template <typename Visit>
bool visit_fields(std::string_view message, uint64_t number, const Visit& visit) {
  MessageReader reader(message);
  while (!reader.at_end()) {
    const auto field = reader.next();
    if (!field || (field->number == number && !visit(*field))) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string form_of(std::string_view module) {
  if (!is_bytecode(module)) {
    return "text";
  }
  // Four bytes of magic number, one byte with the version number (below 128), and the producer, which ends in a zero
  // byte.
  const std::string_view producer = module.substr(std::min<size_t>(5, module.size()), 64);
  constexpr std::string_view kArtifact = "StableHLO_v";
  if (!producer.starts_with(kArtifact)) {
    return "bytecode";
  }
  const std::string_view version = producer.substr(kArtifact.size());
  return "VHLO " +
         std::string(version.substr(0, std::min(version.find('\0'), version.find_first_not_of("0123456789."))));
}

std::string name_of(std::string_view module) {
  constexpr std::string_view kBefore = "module @";
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$.-";
  const std::string_view head = module.substr(0, 1 << 20);  // JAX's locations, a line each, may come before
  const size_t at = is_bytecode(module) ? std::string_view::npos : head.find(kBefore);
  if (at == std::string_view::npos) {
    return "";
  }
  const std::string_view name = head.substr(at + kBefore.size());
  return std::string(name.substr(0, name.find_first_not_of(kPlain)));
}

bool may_hold_attention(std::string_view module) {
  return (has_exponential(module) && has_product(module)) || contains(module, "__cudnn$fmha");
}

int64_t partition_count(std::string_view options) {
  constexpr uint64_t kExecutableBuildOptions = 3;
  constexpr uint64_t kNumPartitions = 5;
  // A message that occurs several times is merged, field by field: so clients add to options by appending to them.
  uint64_t partitions = 1;
  const bool is_read = visit_fields(options, kExecutableBuildOptions, [&](const MessageReader::Field& build_options) {
    return visit_fields(build_options.bytes, kNumPartitions, [&](const MessageReader::Field& field) {
      partitions = field.value;
      return true;
    });
  });
  return is_read ? std::max<int64_t>(static_cast<int64_t>(std::min<uint64_t>(partitions, INT32_MAX)), 1) : 0;
}

}  // namespace flashlift::pjrt
