#include "score/key_count.h"

#include <algorithm>

namespace flashlift::score {

bool divides_by_kv_len(const Program& program) {
  std::vector<bool> follows(program.nodes.size());  // from kv_len
  bool divides = false;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    follows[i] = node.op == Op::k_kv_len ||
                 std::ranges::any_of(node.operands, [&](ValueId operand) { return follows[operand]; });
    const bool is_division = node.type != Type::kF32 && (node.op == Op::k_div || node.op == Op::k_rem ||
                                                         node.op == Op::k_floor_div || node.op == Op::k_mod);
    divides = divides || (is_division && follows[node.operands[1]]);
  }
  return divides;
}

Program with_kv_len(const Program& program, int64_t kv_len) {
  Program known = program;
  for (Node& node : known.nodes) {
    if (node.op == Op::k_kv_len) {
      node = {.op = Op::k_constant, .type = node.type, .operands = {}, .payload = kv_len};
    }
  }
  return known;
}

}  // namespace flashlift::score
