#include "stablehlo/reader/op_table.h"

#include <algorithm>
#include <array>
#include <cstring>

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
  static const std::vector<OpInfo> ops = make_table();
  return ops;
}

// A hash table of its own: the lift looks names up millions of times, and a quarter of its time was
// std::unordered_map's hash over all characters and its chains. The last eight characters distinguish almost all names.
constexpr size_t kSlots = 1024;

size_t first_slot(std::string_view name) {
  uint64_t end = name.size();
  std::memcpy(&end, name.data() + name.size() - std::min(name.size(), sizeof(end)), std::min(name.size(), sizeof(end)));
  return ((end + name.size()) * 0x9E3779B97F4A7C15U) >> 54;
}

const std::array<const OpInfo*, kSlots>& slots_by_name() {
  static const auto slots = [] {
    std::array<const OpInfo*, kSlots> filled = {};
    for (const OpInfo& op : all_ops()) {
      size_t slot = first_slot(op.name);
      for (; filled[slot] != nullptr; slot = (slot + 1) % kSlots) {
      }
      filled[slot] = &op;
    }
    return filled;
  }();
  return slots;
}

}  // namespace

const OpInfo* find_op(std::string_view name) {
  const std::array<const OpInfo*, kSlots>& slots = slots_by_name();
  for (size_t slot = first_slot(name); slots[slot] != nullptr; slot = (slot + 1) % kSlots) {
    if (slots[slot]->name == name) {
      return slots[slot];
    }
  }
  return nullptr;
}

const OpInfo& info(OpKind kind) { return table()[static_cast<size_t>(kind)]; }

std::span<const OpInfo> all_ops() { return std::span<const OpInfo>(table()).subspan(1); }

}  // namespace flashlift::stablehlo
