#include "score/sizes.h"

#include <fmt/format.h>

#include <array>

#include "flashlift/program.h"

namespace flashlift::score {
namespace {

struct Name {
  int64_t size;
  std::string_view text;
};
constexpr std::array<Name, 6> kNames = {{{kAnySize, "?"},
                                         {kBatchSize, "batch"},
                                         {kHeadsSize, "heads"},
                                         {kQLenSize, "q_len"},
                                         {kKvLenSize, "kv_len"},
                                         {kSameSize, "n"}}};

}  // namespace

std::string size_text(int64_t size) {
  for (const Name& name : kNames) {
    if (size == name.size) {
      return std::string(name.text);
    }
    if (size == or_one(name.size)) {
      return fmt::format("1|{}", name.text);
    }
  }
  return fmt::format("{}", size);
}

std::optional<int64_t> parse_size_name(std::string_view text) {
  for (const Name& name : kNames) {
    if (text == name.text) {
      return name.size;
    }
  }
  return std::nullopt;
}

}  // namespace flashlift::score
