#include "cuda/emit/motion.h"

#include <algorithm>
#include <cstdlib>

namespace flashlift::cuda {
namespace {

std::optional<int> step(const Node& node, Op input, bool moves, const std::vector<std::optional<int>>& steps) {
  if (!moves) {
    return 0;
  }
  if (node.op == input) {
    return 1;
  }
  if ((node.op != Op::k_add && node.op != Op::k_sub) || node.type != Type::kI32) {
    return std::nullopt;
  }
  const std::optional<int> x = steps[node.operands[0]];
  const std::optional<int> y = steps[node.operands[1]];
  if (!x || !y || std::abs(*x) + std::abs(*y) > 2) {
    return std::nullopt;
  }
  return node.op == Op::k_add ? *x + *y : *x - *y;
}

}  // namespace

Motion::Motion(const Program& program) {
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    const auto any = [&](const std::vector<bool>& which) {
      return std::any_of(node.operands.begin(), node.operands.end(), [&](ValueId id) { return which[id]; });
    };
    score.push_back(node.op == Op::k_score || any(score));
    kv.push_back(node.op == Op::k_kv || any(kv));
    q.push_back(node.op == Op::k_q || any(q));
    h.push_back(node.op == Op::k_h || any(h));
    kv_step.push_back(step(node, Op::k_kv, kv[i], kv_step));
    q_step.push_back(step(node, Op::k_q, q[i], q_step));
  }
}

std::optional<Linear> Linear::plus(const Linear& other, int sign) const {
  const Linear sum{q + sign * other.q, kv + sign * other.kv, constant + sign * other.constant};
  const bool small = std::abs(sum.q) <= 1 && std::abs(sum.kv) <= 1 && sum.q * sum.kv <= 0;
  return small && std::abs(sum.constant) < kSmallOffset ? std::optional(sum) : std::nullopt;
}

std::vector<std::optional<Linear>> linear_values(const Program& program) {
  std::vector<std::optional<Linear>> values;
  for (const Node& node : program.nodes) {
    std::optional<Linear>& value = values.emplace_back();
    if (node.type != Type::kI32) {
      continue;
    }
    if (node.op == Op::k_q) {
      value = Linear{.q = 1};
    } else if (node.op == Op::k_kv) {
      value = Linear{.kv = 1};
    } else if (node.op == Op::k_constant) {
      value = Linear().plus({.constant = node.payload}, 1);
    } else if (node.op == Op::k_add || node.op == Op::k_sub) {
      const std::optional<Linear> x = values[node.operands[0]];
      const std::optional<Linear> y = values[node.operands[1]];
      value = x && y ? x->plus(*y, node.op == Op::k_add ? 1 : -1) : std::nullopt;
    }
  }
  return values;
}

bool is_mask_load(const Program& program, const Motion& motion, const Node& node) {
  const auto is_key = [&](ValueId id) { return program.nodes[id].op == Op::k_kv; };
  const auto varies_by_head = [&](ValueId id) { return motion.h[id]; };
  return node.op == Op::k_load && node.type == Type::kF32 && std::ranges::any_of(node.operands, is_key) &&
         std::ranges::none_of(node.operands, varies_by_head);
}

bool adds_masks_only(const Program& program) {
  const Motion motion(program);
  bool any = false;
  for (const Node& node : program.nodes) {
    const auto is_mask = [&](ValueId id) { return is_mask_load(program, motion, program.nodes[id]); };
    const bool mask = is_mask_load(program, motion, node);
    any |= mask;
    const bool reads_more = reads_capture(node.op) && !mask &&
                            std::ranges::any_of(node.operands, [&](ValueId id) { return motion.kv[id]; });
    if (reads_more || (node.op != Op::k_add && std::ranges::any_of(node.operands, is_mask))) {
      return false;
    }
  }
  return any && !is_mask_load(program, motion, program.nodes[program.result]);
}

}  // namespace flashlift::cuda
