#include "score/canonical.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace flashlift::score {
namespace {

constexpr ValueId kUnseen = ~ValueId{0};

}  // namespace

Program order_nodes(const Program& source) {
  Program result{.kind = source.kind, .captures = source.captures, .nodes = {}, .result = 0};
  std::vector<ValueId> renamed(source.nodes.size(), kUnseen);

  // An explicit stack, because a program's text may be nested as deeply as the node limit allows.
  std::vector<std::pair<ValueId, size_t>> stack{{source.result, 0}};
  while (!stack.empty()) {
    auto& [id, next_operand] = stack.back();
    const Node& node = source.nodes[id];
    if (renamed[id] != kUnseen) {
      stack.pop_back();
      continue;
    }
    if (next_operand < node.operands.size()) {
      stack.emplace_back(node.operands[next_operand++], 0);
      continue;
    }
    Node copy = node;
    for (ValueId& operand : copy.operands) {
      operand = renamed[operand];
    }
    order_operands(copy, result.nodes);  // by their new numbers: simplify used the old ones
    renamed[id] = static_cast<ValueId>(result.nodes.size());
    result.nodes.push_back(std::move(copy));
    stack.pop_back();
  }
  result.result = renamed[source.result];
  return result;
}

Program canonicalize(const SimplifiedProgram& program, std::vector<std::string>* names) {
  Program result = order_nodes(*program);
  const std::vector<Capture> captures = std::exchange(result.captures, {});
  std::vector<int64_t> capture_index(captures.size(), -1);
  for (Node& node : result.nodes) {
    if (reads_capture(node.op)) {
      int64_t& index = capture_index[static_cast<size_t>(node.payload)];
      if (index < 0) {
        index = static_cast<int64_t>(result.captures.size());
        result.captures.push_back(captures[static_cast<size_t>(node.payload)]);
        if (names != nullptr) {
          names->push_back(result.captures.back().name);
        }
        result.captures.back().name = fmt::format("c{}", index);
      }
      node.payload = index;
    }
  }
  return result;
}

}  // namespace flashlift::score
