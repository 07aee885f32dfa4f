#include "score/random_program.h"

#include <algorithm>
#include <array>
#include <bit>

#include "score/verify.h"

namespace flashlift::score {
namespace {

class Generator {
 public:
  Generator(std::mt19937& random, const RandomProgramOptions& options) : random_(random), options_(options) {
    program_.kind = options.kind;
    program_.captures = options.captures;
  }

  Program run() {
    for (const Op op : {Op::k_b, Op::k_h, Op::k_q, Op::k_q, Op::k_kv, Op::k_kv, Op::k_q_len, Op::k_kv_len}) {
      push({.op = op, .type = Type::kI32, .operands = {}});
    }
    if (options_.kind == ProgramKind::kScoreMod) {
      push({.op = Op::k_score, .type = Type::kF32, .operands = {}});
    }
    for (const int64_t value : {0, 1, 2, 3, 4, 7, 16, -1, -5}) {
      push({.op = Op::k_constant, .type = Type::kI32, .operands = {}, .payload = value});
    }
    if (options_.floats) {
      for (const float value : {0.5f, -2.0f, 10.0f, -HUGE_VALF}) {
        push({.op = Op::k_constant, .type = Type::kF32, .operands = {}, .payload = std::bit_cast<uint32_t>(value)});
      }
    }
    const size_t wanted = program_.nodes.size() + static_cast<size_t>(options_.nodes);
    while (program_.nodes.size() < wanted) {
      add_random_node();
    }
    const Type type = options_.kind == ProgramKind::kScoreMod ? Type::kF32 : Type::kI1;
    while (program_.nodes.back().type != type) {
      add_random_node();
    }
    program_.result = static_cast<ValueId>(program_.nodes.size() - 1);
    return program_;
  }

 private:
  size_t below(size_t count) { return random_() % count; }

  void push(Node node) { program_.nodes.push_back(std::move(node)); }

  // Prefers newer nodes, so that programs get deep.
  bool pick(Type type, ValueId& id) {
    std::vector<ValueId> candidates;
    for (ValueId i = 0; i < program_.nodes.size(); ++i) {
      if (program_.nodes[i].type == type) {
        candidates.push_back(i);
      }
    }
    if (candidates.empty()) {
      return false;
    }
    const size_t from = below(2) == 0 ? 0 : candidates.size() - std::min<size_t>(candidates.size(), 6);
    id = candidates[from + below(candidates.size() - from)];
    return true;
  }

  bool pick_all(const std::vector<Type>& types, std::vector<ValueId>& ids) {
    for (const Type type : types) {
      ValueId id = 0;
      if (!pick(type, id)) {
        return false;
      }
      ids.push_back(id);
    }
    return true;
  }

  void add_random_node() {
    if (!program_.captures.empty() && below(5) == 0) {
      const size_t capture = below(program_.captures.size());
      Node node{.op = Op::k_load, .type = scalar_type(program_.captures[capture].dtype), .operands = {}};
      node.payload = static_cast<int64_t>(capture);
      const bool integers = node.type != Type::kF32 && node.type != Type::kI1;
      if (integers && program_.captures[capture].shape.size() == 1 && below(2) == 0) {
        node.op = Op::k_search;
        node.type = Type::kI32;
      }
      if (pick_all(std::vector<Type>(program_.captures[capture].shape.size(), Type::kI32), node.operands)) {
        push(std::move(node));
      }
      return;
    }
    const Op op = kOps[below(kOps.size())];
    std::array<Type, 4> types = {Type::kI1, Type::kI32, Type::kI64, Type::kF32};
    const Type type = types[below(options_.floats ? 4 : 3)];
    std::vector<Type> operands(std::max(info(op).arity, 0), type);
    if (op == Op::k_select) {
      operands[0] = Type::kI1;
    }
    Node node{.op = op, .type = Type::kI1, .operands = {}};
    const auto result = result_type(op, operands, Type::kI1);
    const bool is_input = info(op).arity == 0 || reads_capture(op);
    const bool is_excluded =
        std::find(options_.excluded.begin(), options_.excluded.end(), op) != options_.excluded.end();
    if (is_input || is_excluded || !result.ok() || (!options_.floats && *result == Type::kF32)) {
      return;
    }
    node.type = *result;
    if (pick_all(operands, node.operands)) {
      push(std::move(node));
    }
  }

  static constexpr std::array kOps = {
#define FLASHLIFT_OP(name, ...) Op::k_##name,
#include "flashlift/ops.def"
  };

  std::mt19937& random_;
  const RandomProgramOptions& options_;
  Program program_;
};

}  // namespace

Program random_program(std::mt19937& random, const RandomProgramOptions& options) {
  return Generator(random, options).run();
}

}  // namespace flashlift::score
