#include "stablehlo/reader/op_table.h"

#include <algorithm>
#include <unordered_map>

#include "support/lazy.h"

namespace flashlift::stablehlo {
namespace {

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    if (space > 0) {
      words.push_back(text.substr(0, space));
    }
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  std::sort(words.begin(), words.end());
  return words;
}

std::vector<OpInfo> make_table() {
  std::vector<OpInfo> table;
  table.push_back({});  // kOther
#define FLASHLIFT_HLO_OP(kind, name, effects, operands, syntax, attributes) \
  table.push_back({OpKind::kind, name, Effects::effects, operands, syntax, split_words(attributes)});
#include "stablehlo/reader/ops.def"
  return table;
}

const std::vector<OpInfo>& table() {
  static constinit Lazy<const std::vector<OpInfo>> ops;
  return ops.get(make_table);
}

}  // namespace

const OpInfo* find_op(std::string_view name) {
  using Map = std::unordered_map<std::string_view, const OpInfo*>;
  static constinit Lazy<const Map> lazy;
  const Map& by_name = lazy.get([] {
    Map found;
    for (const OpInfo& op : all_ops()) {
      found.emplace(op.name, &op);
    }
    return found;
  });
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

const OpInfo& info(OpKind kind) { return table()[static_cast<size_t>(kind)]; }

std::span<const OpInfo> all_ops() { return std::span<const OpInfo>(table()).subspan(1); }

}  // namespace flashlift::stablehlo
