#include "score/simplify.h"

#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "score/operation.h"
#include "score/scalar.h"

namespace flashlift::score {
namespace {

int64_t float_payload(float value) { return std::bit_cast<uint32_t>(value); }

class Simplifier {
 public:
  Simplifier(const Program& source, std::span<ValueId> results) : source_(source), results_(results) {
    result_.kind = source.kind;
    result_.captures = source.captures;
  }

  Program run() {
    const std::vector<bool> live = live_nodes(source_);
    std::vector<ValueId> renamed(source_.nodes.size(), 0);
    for (ValueId id = 0; id < source_.nodes.size(); ++id) {
      if (!live[id]) {
        continue;
      }
      Node node = source_.nodes[id];
      for (ValueId& operand : node.operands) {
        operand = renamed[operand];
      }
      renamed[id] = emit(std::move(node));
    }
    rename_results(result_, source_.result, renamed);
    return drop_dead(std::move(result_));
  }

 private:
  void rename_results(Program& program, ValueId result, const std::vector<ValueId>& renamed) {
    program.result = renamed[result];
    for (ValueId& id : results_) {
      id = renamed[id];
    }
  }

  std::vector<bool> live_nodes(const Program& program) const {
    std::vector<bool> live(program.nodes.size(), false);
    live[program.result] = true;
    for (const ValueId id : results_) {
      live[id] = true;
    }
    for (ValueId id = static_cast<ValueId>(program.nodes.size()); id-- > 0;) {
      if (live[id]) {
        for (const ValueId operand : program.nodes[id].operands) {
          live[operand] = true;
        }
      }
    }
    return live;
  }

  // Removes nodes that rewrites made dead, and captured tensors without remaining loads.
  Program drop_dead(Program program) {
    const std::vector<bool> live = live_nodes(program);
    Program kept{.kind = program.kind, .captures = {}, .nodes = {}, .result = 0};
    std::vector<ValueId> renamed(program.nodes.size(), 0);
    std::vector<int64_t> capture_index(program.captures.size(), -1);
    for (ValueId id = 0; id < program.nodes.size(); ++id) {
      if (!live[id]) {
        continue;
      }
      Node& node = program.nodes[id];
      for (ValueId& operand : node.operands) {
        operand = renamed[operand];
      }
      if (reads_capture(node.op)) {
        int64_t& index = capture_index[node.payload];
        if (index < 0) {
          index = static_cast<int64_t>(kept.captures.size());
          kept.captures.push_back(program.captures[node.payload]);
        }
        node.payload = index;
      }
      renamed[id] = static_cast<ValueId>(kept.nodes.size());
      kept.nodes.push_back(std::move(node));
    }
    rename_results(kept, program.result, renamed);
    return kept;
  }

  const Node& node(ValueId id) const { return result_.nodes[id]; }
  bool is_constant(ValueId id) const { return node(id).op == Op::k_constant; }
  bool is_constant(ValueId id, int64_t payload) const { return is_constant(id) && node(id).payload == payload; }
  bool is_float(ValueId id, float value) const {
    return node(id).type == Type::kF32 && is_constant(id, float_payload(value));
  }

  ValueId constant(Type type, int64_t payload) {
    return share({.op = Op::k_constant, .type = type, .operands = {}, .payload = payload});
  }

  ValueId unary(Op op, Type type, ValueId x) { return emit({.op = op, .type = type, .operands = {x}}); }

  ValueId share(Node made) {
    auto key = std::make_tuple(made.op, made.type, made.payload, made.operands);
    const auto [it, is_new] = existing_.emplace(std::move(key), static_cast<ValueId>(result_.nodes.size()));
    if (is_new) {
      result_.nodes.push_back(std::move(made));
    }
    return it->second;
  }

  ValueId emit(Node made) {
    if (const auto folded = fold(made)) {
      return *folded;
    }
    spell_comparison(made);
    order_operands(made, result_.nodes);
    if (const auto simpler = apply_identity(made)) {
      return *simpler;
    }
    return share(std::move(made));
  }

  std::optional<ValueId> fold(const Node& made) {
    if (made.operands.empty() || reads_capture(made.op)) {
      return std::nullopt;
    }
    std::array<Scalar<float>, 3> values;
    for (size_t i = 0; i < made.operands.size(); ++i) {
      const Node& operand = node(made.operands[i]);
      if (operand.op != Op::k_constant) {
        return std::nullopt;
      }
      values[i].i = operand.payload;
      if (operand.type == Type::kF32) {
        values[i].f = std::bit_cast<float>(static_cast<uint32_t>(operand.payload));
      }
    }
    const auto value =
        apply<float>(made.op, made.type, node(made.operands.back()).type, {values.data(), made.operands.size()});
    return constant(made.type, made.type == Type::kF32 ? float_payload(value.f) : value.i);
  }

  // Writes x > y as y < x, so that intervals and backends have one form to handle.
  static void spell_comparison(Node& made) {
    if (made.operands.size() == 2 && is_any(made.op, {Op::k_gt, Op::k_ge})) {
      made.op = made.op == Op::k_gt ? Op::k_lt : Op::k_le;
      std::swap(made.operands[0], made.operands[1]);
    }
  }

  std::optional<ValueId> apply_identity(const Node& made) {
    if (is_any(made.op, {Op::k_add, Op::k_sub})) {
      return additive_identity(made);
    }
    if (is_any(made.op, {Op::k_mul, Op::k_div})) {
      return multiplicative_identity(made);
    }
    if (info(made.op).rule == TypeRule::kBits) {
      return logical_identity(made);
    }
    if (is_any(made.op, {Op::k_eq, Op::k_ne})) {
      return equality_identity(made);
    }
    if (made.op == Op::k_select) {
      return select_identity(made);
    }
    if (made.op == Op::k_neg) {
      const Node& inner = node(made.operands[0]);
      return inner.op == Op::k_neg ? std::optional(inner.operands[0]) : std::nullopt;
    }
    if (info(made.op).rule == TypeRule::kConvert) {
      return conversion_identity(made);
    }
    if (is_any(made.op, {Op::k_min, Op::k_max})) {
      return made.operands[0] == made.operands[1] ? std::optional(made.operands[0]) : extremum_identity(made);
    }
    return std::nullopt;
  }

  // For floats, x + 0 is not x (-0 + 0 is 0), but x - 0 and x + -0 are.
  std::optional<ValueId> additive_identity(const Node& made) {
    const auto [x, y] = std::pair(made.operands[0], made.operands[1]);
    if (made.type == Type::kF32) {
      return is_float(y, made.op == Op::k_add ? -0.0f : 0.0f) ? std::optional(x) : std::nullopt;
    }
    if (is_constant(y, 0)) {
      return x;
    }
    if (made.op == Op::k_sub && x == y) {
      return constant(made.type, 0);
    }
    return std::nullopt;
  }

  std::optional<ValueId> multiplicative_identity(const Node& made) {
    const auto [x, y] = std::pair(made.operands[0], made.operands[1]);
    if (made.type == Type::kF32) {
      return is_float(y, 1.0f) ? std::optional(x) : std::nullopt;
    }
    if (is_constant(y, 1)) {
      return x;
    }
    if (made.op == Op::k_mul && is_constant(y, 0)) {
      return y;
    }
    return std::nullopt;
  }

  std::optional<ValueId> extremum_identity(const Node& made) {
    const ValueId y = made.operands[1];
    const float limit = made.op == Op::k_max ? -INFINITY : INFINITY;  // max(x, -inf) is x, also for NaN
    return made.type == Type::kF32 && is_float(y, limit) ? std::optional(made.operands[0]) : std::nullopt;
  }

  std::optional<ValueId> logical_identity(const Node& made) {
    const ValueId x = made.operands[0];
    if (made.op == Op::k_not) {
      return not_identity(made);
    }
    const ValueId y = made.operands[1];
    const int64_t ones = made.type == Type::kI1 ? 1 : -1;
    if (x == y) {
      return made.op == Op::k_xor ? constant(made.type, 0) : x;
    }
    if (is_constant(y, 0)) {
      return made.op == Op::k_and ? y : x;
    }
    if (is_constant(y, ones)) {
      if (made.op == Op::k_and) {
        return x;
      }
      return made.op == Op::k_or ? y : unary(Op::k_not, made.type, x);
    }
    return std::nullopt;
  }

  // not(x < y) is y <= x only for integers: for NaN, both comparisons are false.
  std::optional<ValueId> not_identity(const Node& made) {
    const Node inner = node(made.operands[0]);
    if (inner.op == Op::k_not) {
      return inner.operands[0];
    }
    const auto flipped = [&](Op op, ValueId x, ValueId y) {
      return emit({.op = op, .type = Type::kI1, .operands = {x, y}});
    };
    if (inner.op == Op::k_eq || inner.op == Op::k_ne) {
      return flipped(inner.op == Op::k_eq ? Op::k_ne : Op::k_eq, inner.operands[0], inner.operands[1]);
    }
    if ((inner.op == Op::k_lt || inner.op == Op::k_le) && node(inner.operands[0]).type != Type::kF32) {
      return flipped(inner.op == Op::k_lt ? Op::k_le : Op::k_lt, inner.operands[1], inner.operands[0]);
    }
    return std::nullopt;
  }

  std::optional<ValueId> equality_identity(const Node& made) {
    const auto [x, y] = std::pair(made.operands[0], made.operands[1]);
    const bool equal = made.op == Op::k_eq;
    if (x == y && node(x).type != Type::kF32) {
      return constant(Type::kI1, equal ? 1 : 0);
    }
    if (!is_constant(y)) {
      return std::nullopt;
    }
    if (node(x).type == Type::kI1) {  // b == true is b, b == false is not b
      return (node(y).payload != 0) == equal ? x : unary(Op::k_not, Type::kI1, x);
    }
    // to_i32(b) != 0 is b: frameworks convert integer masks back to booleans like this.
    if (node(y).payload == 0 && is_conversion(node(x).op) && node(node(x).operands[0]).type == Type::kI1) {
      const ValueId boolean = node(x).operands[0];
      return equal ? unary(Op::k_not, Type::kI1, boolean) : boolean;
    }
    return std::nullopt;
  }

  std::optional<ValueId> select_identity(const Node& made) {
    const ValueId condition = made.operands[0];
    const ValueId x = made.operands[1];
    const ValueId y = made.operands[2];
    if (is_constant(condition)) {
      return node(condition).payload != 0 ? x : y;
    }
    if (x == y) {
      return x;
    }
    if (node(condition).op == Op::k_not) {
      return emit({.op = Op::k_select, .type = made.type, .operands = {node(condition).operands[0], y, x}});
    }
    if (made.type == Type::kI1) {
      const auto combine = [&](Op op, ValueId left, ValueId right) {
        return emit({.op = op, .type = Type::kI1, .operands = {left, right}});
      };
      if (is_constant(y)) {  // c ? x : false, c ? x : true
        return node(y).payload == 0 ? combine(Op::k_and, condition, x)
                                    : combine(Op::k_or, unary(Op::k_not, Type::kI1, condition), x);
      }
      if (is_constant(x)) {  // c ? true : y, c ? false : y
        return node(x).payload != 0 ? combine(Op::k_or, condition, y)
                                    : combine(Op::k_and, unary(Op::k_not, Type::kI1, condition), y);
      }
    }
    // The same condition nested: c ? (c ? a : b) : y.
    if (node(x).op == Op::k_select && node(x).operands[0] == condition) {
      return emit({.op = Op::k_select, .type = made.type, .operands = {condition, node(x).operands[1], y}});
    }
    if (node(y).op == Op::k_select && node(y).operands[0] == condition) {
      return emit({.op = Op::k_select, .type = made.type, .operands = {condition, x, node(y).operands[2]}});
    }
    return std::nullopt;
  }

  static bool is_conversion(Op op) {
    return op == Op::k_to_i1 || op == Op::k_to_i32 || op == Op::k_to_i64 || op == Op::k_to_f32;
  }

  std::optional<ValueId> conversion_identity(const Node& made) {
    const Node inner = node(made.operands[0]);
    if (inner.type == made.type) {
      return made.operands[0];
    }
    if (!is_conversion(inner.op)) {
      return std::nullopt;
    }
    // Conversions through a type that holds every value of the first: from i1 to any type, from i32 to i64.
    const Type first = node(inner.operands[0]).type;
    const bool exact = first == Type::kI1 || (first == Type::kI32 && inner.type == Type::kI64);
    if (!exact) {
      return std::nullopt;
    }
    return first == made.type ? inner.operands[0]
                              : emit({.op = made.op, .type = made.type, .operands = {inner.operands[0]}});
  }

  const Program& source_;
  std::span<ValueId> results_;
  Program result_;
  std::map<std::tuple<Op, Type, int64_t, std::vector<ValueId>>, ValueId> existing_;
};

}  // namespace

void order_operands(Node& node, std::span<const Node> nodes) {
  const bool commutes =
      is_any(node.op, {Op::k_add, Op::k_mul, Op::k_min, Op::k_max, Op::k_and, Op::k_or, Op::k_xor, Op::k_eq, Op::k_ne});
  const auto rank = [&](ValueId id) { return std::make_pair(nodes[id].op == Op::k_constant, id); };
  if (commutes && rank(node.operands[1]) < rank(node.operands[0])) {
    std::swap(node.operands[0], node.operands[1]);
  }
}

Program simplify(const Program& program) { return simplify(program, {}); }

Program simplify(const Program& program, std::span<ValueId> results) {
  // A pass visits each node after its operands, so that a second pass is needed only for a rewrite that changed an
  // operand of an earlier node. In practice, two passes reach the fixed point; equal hashes do not depend on it.
  const Program once = Simplifier(program, results).run();
  return Simplifier(once, results).run();
}

bool is_constant(const Program& program, int64_t payload) {
  const Node& result = program.nodes[program.result];
  return result.op == Op::k_constant && result.payload == payload;
}

bool is_identity(const Program& program) {
  return program.kind == ProgramKind::kMaskMod ? is_constant(program, 1)
                                               : program.nodes[program.result].op == Op::k_score;
}

}  // namespace flashlift::score
