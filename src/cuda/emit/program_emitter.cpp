#include "cuda/emit/program_emitter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "cuda/kernels/forward_params.h"
#include "problem/differentiate.h"
#include "support/error.h"

namespace flashlift::cuda {
namespace {

const char* type_name(Type type) {
  switch (type) {
    case Type::kI1:
      return "bool";
    case Type::kI32:
      return "i32";
    case Type::kI64:
      return "i64";
    case Type::kF32:
      return "float";
  }
  return "?";
}

const char* everything(Type type) {
  switch (type) {
    case Type::kI1:
      return "everything_b()";
    case Type::kI32:
      return "everything_i<i32>()";
    case Type::kI64:
      return "everything_i<i64>()";
    case Type::kF32:
      return "everything_f()";
  }
  return "?";
}

const char* element_name(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return "ElementBool";
    case DType::kI8:
      return "ElementI8";
    case DType::kU8:
      return "ElementU8";
    case DType::kI16:
      return "ElementI16";
    case DType::kI32:
      return "ElementI32";
    case DType::kU32:
      return "ElementU32";
    case DType::kI64:
      return "ElementI64";
    case DType::kF16:
      return "ElementF16";
    case DType::kBF16:
      return "ElementBF16";
    case DType::kF32:
      return "ElementF32";
    case DType::kF64:
      return "ElementF64";
  }
  return "?";
}

std::string constant_text(const Node& node) {
  switch (node.type) {
    case Type::kI1:
      return node.payload != 0 ? "true" : "false";
    case Type::kI32:  // through unsigned: the lowest value has no literal
      return fmt::format("static_cast<i32>({}u)", static_cast<uint32_t>(node.payload));
    case Type::kI64:
      return fmt::format("static_cast<i64>({}ull)", static_cast<uint64_t>(node.payload));
    case Type::kF32:  // by its bits, so that NaN and infinities need no names
      return fmt::format("__int_as_float(0x{:08x}) /* {} */", static_cast<uint32_t>(node.payload),
                         std::bit_cast<float>(static_cast<uint32_t>(node.payload)));
  }
  return "?";
}

// How tightly an operation is known over intervals.
bool has_interval_form(const Program& program, const Node& node) {
  const bool real = node.type == Type::kF32;
  const Type operand = node.operands.empty() ? node.type : program.nodes[node.operands.back()].type;
  switch (node.op) {
    case Op::k_score:
    case Op::k_b:
    case Op::k_h:
    case Op::k_q:
    case Op::k_kv:
    case Op::k_q_len:
    case Op::k_kv_len:
    case Op::k_constant:
    case Op::k_load:
    case Op::k_search:
    case Op::k_add:
    case Op::k_sub:
    case Op::k_mul:
    case Op::k_min:
    case Op::k_max:
    case Op::k_neg:
    case Op::k_abs:
    case Op::k_tanh:
    case Op::k_floor:
    case Op::k_ceil:
    case Op::k_eq:
    case Op::k_ne:
    case Op::k_lt:
    case Op::k_le:
    case Op::k_gt:
    case Op::k_ge:
    case Op::k_is_finite:
    case Op::k_select:
    case Op::k_to_i1:
    case Op::k_to_i32:
    case Op::k_to_i64:
    case Op::k_to_f32:
    case Op::k_floor_div:
    case Op::k_mod:
    case Op::k_shl:
    case Op::k_shr:
    case Op::k_ushr:
    case Op::k_and:
      return true;
    case Op::k_div:
    case Op::k_rem:
    case Op::k_sign:
      return !real;
    case Op::k_or:
    case Op::k_xor:
    case Op::k_not:
      return operand == Type::kI1;
    case Op::k_round_even:
    case Op::k_pow:
    case Op::k_exp:
    case Op::k_exp2:
    case Op::k_expm1:
    case Op::k_log:
    case Op::k_log2:
    case Op::k_log1p:
    case Op::k_sqrt:
    case Op::k_rsqrt:
    case Op::k_sigmoid:
    case Op::k_sin:
    case Op::k_cos:
    case Op::k_erf:
    case Op::k_bitcast_i32:
    case Op::k_bitcast_f32:
    case Op::k_round_bf16:
    case Op::k_round_f16:
      return false;
  }
  return false;
}

// Constant offsets in sums with kv, up to which a sum cannot leave i32 (lengths are below 2^30).
constexpr int64_t kSmallOffset = int64_t{1} << 29;

std::optional<float> constant_f32(const Program& program, ValueId id) {
  const Node& node = program.nodes[id];
  if (node.op != Op::k_constant || node.type != Type::kF32) {
    return std::nullopt;
  }
  return std::bit_cast<float>(static_cast<uint32_t>(node.payload));
}

std::string float_text(float value) {
  return fmt::format("__int_as_float(0x{:08x}) /* {} */", std::bit_cast<uint32_t>(value), value);
}

// A last multiplication by a positive constant, which the softmax can take over: it multiplies anyway. 16-bit problems
// only, which do not see the last bit.
struct LastFactor {
  ValueId inner = 0;
  float factor = 1.0f;
};
LastFactor last_factor(const Problem& problem, const Program& program) {
  const Node& node = program.nodes[program.result];
  if (problem.dtype != DType::kF32 && node.op == Op::k_mul && node.type == Type::kF32) {
    for (const int side : {0, 1}) {
      const std::optional<float> factor = constant_f32(program, node.operands[side]);
      if (factor && std::isnormal(*factor) && *factor > 0.0f) {
        return {node.operands[1 - side], *factor};
      }
    }
  }
  return {program.result, 1.0f};
}

// What each value of a program depends on, and how i32 values grow with q and kv where that is constant.
struct Motion {
  explicit Motion(const Program& program) {
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

  std::vector<bool> score, kv, q, h;
  std::vector<std::optional<int>> kv_step, q_step;

 private:
  static std::optional<int> step(const Node& node, Op input, bool moves, const std::vector<std::optional<int>>& steps) {
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
};

// q * query + kv * key + constant, of i32 values that cannot leave i32 on the way (lengths are below 2^30).
struct Linear {
  int q = 0;
  int kv = 0;
  int64_t constant = 0;

  std::optional<Linear> plus(const Linear& other, int sign) const {
    const Linear sum{q + sign * other.q, kv + sign * other.kv, constant + sign * other.constant};
    const bool small = std::abs(sum.q) <= 1 && std::abs(sum.kv) <= 1 && sum.q * sum.kv <= 0;
    return small && std::abs(sum.constant) < kSmallOffset ? std::optional(sum) : std::nullopt;
  }
};

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

// A load of one float for each key, the same for all heads: a mask of 0 and -inf, as a rule. (Of biases that heads have
// for themselves nothing is to be known, and to ask costs up to a fourth of the time: docs/lessons.md.)
bool is_mask_load(const Program& program, const Motion& motion, const Node& node) {
  const auto is_key = [&](ValueId id) { return program.nodes[id].op == Op::k_kv; };
  const auto varies_by_head = [&](ValueId id) { return motion.h[id]; };
  return node.op == Op::k_load && node.type == Type::kF32 && std::ranges::any_of(node.operands, is_key) &&
         std::ranges::none_of(node.operands, varies_by_head);
}

// Does it read nothing that changes with the key but masks, and do nothing with them but add them? Where they are zeros
// it then is a program without loads.
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

// Which function a program's values are computed in.
enum class Part : uint8_t {
  kWhole,     // score_mod or mask_mod
  kInside,    // score_mod where loads that move with the keys are known to be inside their tensors
  kZeros,     // score_mod where masks that are added are known to be zeros
  kInterval,  // the program over intervals
  kRow,       // searches that depend on the query alone
  kColumn,    // searches that depend on the key alone
};

class Emitter {
 public:
  Emitter(const Problem& problem, const Program& program, Part part)
      : problem_(problem),
        program_(program),
        motion_(program),
        linear_(linear_values(program)),
        part_(part),
        interval_(part == Part::kInterval) {
    find_steps();
  }

  bool is_row_search(size_t i) const {
    return program_.nodes[i].op == Op::k_search && !motion_.kv[i] && !motion_.score[i];
  }
  bool is_column_search(size_t i) const {
    const Node& node = program_.nodes[i];
    return node.op == Op::k_search && motion_.kv_step[node.operands[0]].value_or(0) != 0 && !motion_.q[i] &&
           !motion_.h[i] && !motion_.score[i];
  }
  // A load at a position that grows with the keys, step by step.
  bool is_straight_load(size_t i) const {
    const Node& node = program_.nodes[i];
    if (node.op != Op::k_load || node.operands.empty()) {
      return false;
    }
    const ValueId last = node.operands.back();
    const bool others = std::any_of(node.operands.begin(), node.operands.end() - 1,
                                    [&](ValueId id) { return motion_.kv[id] || motion_.score[id]; });
    return !others && !motion_.score[last] && program_.nodes[last].type == Type::kI32 &&
           motion_.kv_step[last].value_or(0) != 0;
  }
  template <typename Predicate>
  std::vector<size_t> nodes_that(Predicate predicate) const {
    std::vector<size_t> found;
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      if ((this->*predicate)(i)) {
        found.push_back(i);
      }
    }
    return found;
  }

  // Statements that compute every node, the result last.
  std::string body() {
    statements();
    const bool score_mod = program_.kind == ProgramKind::kScoreMod;
    if (interval_) {
      text_ += score_mod ? fmt::format("  return {{surely_masked(v{}), {}}};\n", program_.result, zeros_condition())
                         : fmt::format("  return v{}.possible;\n", program_.result);
    } else {
      text_ += fmt::format("  return v{};\n", score_mod ? last_factor(problem_, program_).inner : program_.result);
    }
    return std::move(text_);
  }

  // Statements that compute every node of a derivative, and those that give the score and set `derivative`.
  std::string derivative_body(ValueId d_score) {
    statements();
    return std::move(text_) + fmt::format("  derivative = v{};\n  return v{};\n", d_score, program_.result);
  }

  // Is it a load of one element for all keys of a row?
  bool is_row_load(const score::LoadDerivative& load) const {
    return std::ranges::none_of(program_.nodes[load.load].operands,
                                [&](ValueId id) { return motion_.kv[id] || motion_.score[id]; });
  }

  // Statements that add an element's gradient, or its share of a row's, to those of captured tensors.
  std::string captured_body(const std::vector<score::LoadDerivative>& loads) {
    statements();
    for (size_t i = 0; i < loads.size(); ++i) {
      // A masked element's weight may be infinite.
      const std::string value = fmt::format("ds != 0.0f ? ds * v{} : 0.0f", loads[i].weight);
      if (is_row_load(loads[i])) {
        text_ += fmt::format("  sums.load{}[r] += {};\n", i, value);
        continue;
      }
      const Node& node = program_.nodes[loads[i].load];
      const bool shared =
          std::ranges::none_of(node.operands, [&](ValueId id) { return motion_.q[id] || motion_.score[id]; });
      text_ += fmt::format("  add_to_gradient<{}>({}, gradients[{}]{}{});\n", shared, value, capture_index(node),
                           node.operands.empty() ? "" : ", ", operands(node));
    }
    return std::move(text_);
  }

  // Statements that add a row's sums to the gradients of captured tensors.
  std::string captured_rows_body(const std::vector<score::LoadDerivative>& loads) {
    statements();
    for (size_t i = 0; i < loads.size(); ++i) {
      if (is_row_load(loads[i])) {
        const Node& node = program_.nodes[loads[i].load];
        text_ += fmt::format("  add_row_to_gradient(sums.load{}[r], inside, gradients[{}]{}{});\n", i,
                             capture_index(node), node.operands.empty() ? "" : ", ", operands(node));
      }
    }
    return std::move(text_);
  }

  // Statements that give the row's or the column's searches.
  std::string searches() {
    statements();
    std::string list;
    for (const size_t i : nodes_that(part_ == Part::kRow ? &Emitter::is_row_search : &Emitter::is_column_search)) {
      list += fmt::format("{}v{}", list.empty() ? "" : ", ", i);
    }
    return std::move(text_) + fmt::format("  return {{{}}};\n", list);
  }

  // Statements that say whether all straight loads of a row's keys 0 to last_key are inside their tensors.
  std::string bounds_check() {
    statements();
    std::string condition;
    for (const size_t i : nodes_that(&Emitter::is_straight_load)) {
      const Node& node = program_.nodes[i];
      condition += fmt::format("{}op_inside(params.captures[{}], {}, {}, {} * last_key)",
                               condition.empty() ? "" : " && ", capture_index(node), node.operands.size() - 1,
                               origin(node.operands.back(), false), *motion_.kv_step[node.operands.back()]);
    }
    return std::move(text_) + fmt::format("  return {};\n", condition);
  }

 private:
  bool is_whole() const { return part_ == Part::kWhole || part_ == Part::kInside || part_ == Part::kZeros; }

  // Over intervals: are all masks that it adds zeros?
  std::string zeros_condition() const {
    std::string condition;
    for (const size_t i : nodes_that(&Emitter::is_mask)) {
      condition += fmt::format("{}surely_zero(v{})", condition.empty() ? "" : " && ", i);
    }
    return adds_masks_only(program_) ? condition : "false";
  }
  bool is_mask(size_t i) const { return is_mask_load(program_, motion_, program_.nodes[i]); }

  void statements() {
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      const bool moves = motion_.score[i] || (part_ == Part::kRow && motion_.kv[i]) ||
                         (part_ == Part::kColumn && (motion_.q[i] || motion_.h[i]));
      if ((part_ == Part::kRow || part_ == Part::kColumn) && moves) {
        continue;
      }
      text_ +=
          fmt::format("  const {} v{} = {};\n", interval_ ? "auto" : type_name(program_.nodes[i].type), i, value(i));
      if (steps_[i] != 0) {
        text_ += fmt::format("  const i32 first{} = {};\n", i, value_at_first_key(program_.nodes[i]));
      }
    }
  }

  // How much an i32 value grows from key to key, where that is constant: the sums with kv. Of such a value, the one at
  // the thread's first key is converted to f32 once, and a constant added for each other key: conversions are slow.
  void find_steps() {
    steps_.assign(program_.nodes.size(), 0);
    if (!is_whole() || problem_.dtype == DType::kF32 || program_.kind != ProgramKind::kScoreMod) {
      return;
    }
    const auto plain = [&](ValueId id) {  // q, or a small constant: the sum cannot wrap around
      const Node& other = program_.nodes[id];
      return other.op == Op::k_q || (other.op == Op::k_constant && std::abs(other.payload) < kSmallOffset);
    };
    const auto is_kv = [&](ValueId id) { return program_.nodes[id].op == Op::k_kv; };
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      const Node& node = program_.nodes[i];
      if (node.op == Op::k_kv) {
        steps_[i] = 1;
      } else if ((node.op == Op::k_add || node.op == Op::k_sub) && node.type == Type::kI32) {
        if (is_kv(node.operands[0]) && plain(node.operands[1])) {
          steps_[i] = 1;
        } else if (is_kv(node.operands[1]) && plain(node.operands[0])) {
          steps_[i] = node.op == Op::k_sub ? -1 : 1;
        }
      }
    }
  }

  std::string value_at_first_key(const Node& node) const {
    if (node.op == Op::k_kv) {
      return "kv_first";
    }
    const auto operand = [&](ValueId id) { return fmt::format("{}{}", steps_[id] != 0 ? "first" : "v", id); };
    return fmt::format("op_{}({}, {})", info(node.op).name, operand(node.operands[0]), operand(node.operands[1]));
  }

  // A value that grows with kv at the first key; and, if asked for, with q at the first of two rows.
  std::string origin(ValueId id, bool first_row) const {
    const Node& node = program_.nodes[id];
    if (node.op == Op::k_kv) {
      return "kv_first";
    }
    if (node.op == Op::k_q && first_row) {
      return "q_first";
    }
    if (!motion_.kv[id] && !(first_row && motion_.q[id])) {
      return fmt::format("v{}", id);
    }
    return fmt::format("op_{}({}, {})", info(node.op).name, origin(node.operands[0], first_row),
                       origin(node.operands[1], first_row));
  }

  std::string value(size_t i) const {
    const Node& node = program_.nodes[i];
    if (interval_ && !has_interval_form(program_, node)) {
      return everything(node.type);
    }
    switch (info(node.op).rule) {
      case TypeRule::kInputF32:
        return interval_ ? "anything_finite()" : "score";
      case TypeRule::kInputI32:
        return input(node.op);
      case TypeRule::kConstant:
        return interval_ ? fmt::format("point({})", constant_text(node)) : constant_text(node);
      case TypeRule::kSearch:
        if (is_whole()) {
          if (is_row_search(i)) {
            return fmt::format("row.v{}", i);
          }
          if (is_column_search(i)) {
            return fmt::format("column.v{}", i);
          }
        }
        return load(node);
      case TypeRule::kLoad:
        if (part_ == Part::kZeros && is_mask_load(program_, motion_, node)) {
          return "0.0f";
        }
        return part_ == Part::kInside && is_straight_load(i) ? straight_load(node) : load(node);
      case TypeRule::kNumeric:
      case TypeRule::kInteger:
      case TypeRule::kBits:
      case TypeRule::kFloat:
      case TypeRule::kCompare:
      case TypeRule::kCompareAny:
      case TypeRule::kPredicate:
      case TypeRule::kSelect:
      case TypeRule::kConvert:
      case TypeRule::kBitcast:
        return call(node);
    }
    return "?";
  }

  std::string input(Op op) const {
    const bool length = op == Op::k_q_len || op == Op::k_kv_len;
    std::string name = (length ? "params." : "") + std::string(info(op).name);
    if (!interval_) {
      return name;
    }
    const bool ranged = op == Op::k_h || op == Op::k_q || op == Op::k_kv;
    return ranged ? fmt::format("range({0}_first, {0}_last)", name) : fmt::format("point({})", name);
  }

  std::string operands(const Node& node) const {
    std::string list;
    for (const ValueId operand : node.operands) {
      list += fmt::format("{}v{}", list.empty() ? "" : ", ", operand);
    }
    return list;
  }

  std::string call(const Node& node) const {
    if (!interval_ && problem_.dtype != DType::kF32) {
      if (node.op == Op::k_to_f32 && steps_[node.operands[0]] != 0) {
        return fmt::format("op_to_f32(first{}) + static_cast<float>({} * key)", node.operands[0],
                           steps_[node.operands[0]]);
      }
      for (const auto& product : {product_with_constant(node), product_with_distance(node)}) {
        if (product) {
          return *product;
        }
      }
    }
    if (const auto comparison = comparison_with_key(node)) {
      return *comparison;
    }
    return fmt::format("{}_{}({})", interval_ ? "iv" : "op", info(node.op).name, operands(node));
  }

  // A comparison with the key's position: the key, which is a constant where the code is unrolled, with what the row
  // gives once. Otherwise each position takes an instruction of its own.
  std::optional<std::string> comparison_with_key(const Node& node) const {
    const TypeRule rule = info(node.op).rule;
    if (!is_whole() || (rule != TypeRule::kCompare && rule != TypeRule::kCompareAny)) {
      return std::nullopt;
    }
    const char* name = info(node.op).name;
    const std::optional<Linear>& x = linear_[node.operands[0]];
    const std::optional<Linear>& y = linear_[node.operands[1]];
    const std::optional<Linear> difference = x && y ? x->plus(*y, -1) : std::nullopt;
    if (difference && difference->kv != 0) {
      const std::string rest =
          fmt::format("{}{} - kv_first", difference->q == 0 ? "" : "q + ", -difference->kv * difference->constant);
      return difference->kv > 0 ? fmt::format("op_{}(key, {})", name, rest) : fmt::format("op_{}({}, key)", name, rest);
    }
    for (const int side : {0, 1}) {
      const ValueId other = node.operands[1 - side];
      if (program_.nodes[node.operands[side]].op == Op::k_kv && !motion_.kv[other] && !motion_.score[other]) {
        const std::string rest = fmt::format("max(v{}, -1) - kv_first", other);  // positions are not negative
        return side == 0 ? fmt::format("op_{}(key, {})", name, rest) : fmt::format("op_{}({}, key)", name, rest);
      }
    }
    return std::nullopt;
  }

  // x * c and x / c as one multiplication, and the score's own scale in the same one.
  std::optional<std::string> product_with_constant(const Node& node) const {
    if ((node.op != Op::k_mul && node.op != Op::k_div) || node.type != Type::kF32) {
      return std::nullopt;
    }
    for (const int side : {1, 0}) {
      std::optional<float> factor = constant_f32(program_, node.operands[side]);
      if (!factor || (side == 0 && node.op == Op::k_div)) {
        continue;
      }
      const ValueId other = node.operands[1 - side];
      factor = node.op == Op::k_div ? 1.0f / *factor : *factor;
      if (!std::isnormal(*factor)) {
        return std::nullopt;
      }
      return program_.nodes[other].op == Op::k_score ? fmt::format("raw * (params.scale * {})", float_text(*factor))
                                                     : fmt::format("v{} * {}", other, float_text(*factor));
    }
    return std::nullopt;
  }

  // A row's slope times the distance to the key: the product at the first key once, and one multiply-add for each key.
  std::optional<std::string> product_with_distance(const Node& node) const {
    if (node.op != Op::k_mul || node.type != Type::kF32) {
      return std::nullopt;
    }
    for (const int side : {0, 1}) {
      const Node& distance = program_.nodes[node.operands[side]];
      const ValueId slope = node.operands[1 - side];
      if (distance.op == Op::k_to_f32 && steps_[distance.operands[0]] != 0 && !motion_.kv[slope] &&
          !motion_.score[slope]) {
        return fmt::format("fmaf(v{0}, static_cast<float>({1} * key), v{0} * op_to_f32(first{2}))", slope,
                           steps_[distance.operands[0]], distance.operands[0]);
      }
    }
    return std::nullopt;
  }

  std::ptrdiff_t capture_index(const Node& node) const {
    const Capture& capture = program_.captures[static_cast<size_t>(node.payload)];
    return std::find(problem_.captures.begin(), problem_.captures.end(), capture) - problem_.captures.begin();
  }
  const char* element_of(const Node& node) const {
    return element_name(program_.captures[static_cast<size_t>(node.payload)].dtype);
  }

  std::string load(const Node& node) const {
    const std::string indices = operands(node);
    const std::string block = interval_ && node.op == Op::k_load ? fmt::format(", {}", block_rows(node)) : "";
    return fmt::format("{}_{}<{}{}>(params.captures[{}]{}{})", interval_ ? "iv" : "op", info(node.op).name,
                       element_of(node), block, capture_index(node), indices.empty() ? "" : ", ", indices);
  }

  // What the bounds of a load's tensor are of (1 also where it has none).
  int block_rows(const Node& node) const {
    const auto index = static_cast<size_t>(capture_index(node));
    for (const BoundedCapture& bounded : bounded_captures(problem_)) {
      if (bounded.index == index) {
        return bounded.rows;
      }
    }
    return 1;
  }

  // From the address at the first key, so that each key's is a constant away; and from that of the first of two rows if
  // the position grows with q too: the rows' elements are then seen to be the same ones, some keys apart.
  std::string straight_load(const Node& node) const {
    const ValueId last = node.operands.back();
    const bool shares = motion_.q_step[last] && std::none_of(node.operands.begin(), node.operands.end() - 1,
                                                             [&](ValueId id) { return motion_.q[id]; });
    std::string indices;
    for (size_t d = 0; d + 1 < node.operands.size(); ++d) {
      indices += fmt::format(", v{}", node.operands[d]);
    }
    return fmt::format("op_load_inside<{}>(params.captures[{}], {} * key + {} * row_offset{}, {})", element_of(node),
                       capture_index(node), *motion_.kv_step[last], shares ? *motion_.q_step[last] : 0, indices,
                       origin(last, shares));
  }

  const Problem& problem_;
  const Program& program_;
  const Motion motion_;
  const std::vector<std::optional<Linear>> linear_;
  const Part part_;
  const bool interval_;
  std::vector<int> steps_;
  std::string text_;
};

// Does it load anything at a position that moves with the keys?
bool loads_by_key(const std::optional<Program>& score_mod) {
  if (!score_mod) {
    return false;
  }
  const Motion motion(*score_mod);
  for (size_t i = 0; i < score_mod->nodes.size(); ++i) {
    if (reads_capture(score_mod->nodes[i].op) && motion.kv[i]) {
      return true;
    }
  }
  return false;
}

// May a score_mod give -inf in all of a tile, by a constant or by what it loads? Only then are its intervals worth
// evaluating.
bool masks(const std::optional<Program>& score_mod) {
  if (!score_mod) {
    return false;
  }
  const Motion motion(*score_mod);
  return std::ranges::any_of(score_mod->nodes, [&](const Node& node) {
    const bool lowest = node.op == Op::k_constant && node.type == Type::kF32 &&
                        std::bit_cast<float>(static_cast<uint32_t>(node.payload)) == -INFINITY;
    return lowest || is_mask_load(*score_mod, motion, node);
  });
}

void add_bounded_captures(const Problem& problem, const Program& program, std::vector<BoundedCapture>& bounded) {
  const Motion motion(program);
  const auto moves = [&](ValueId id) { return motion.q[id] || motion.kv[id]; };
  for (const Node& node : program.nodes) {
    if (node.op != Op::k_load || node.operands.empty() || !moves(node.operands.back())) {
      continue;
    }
    const bool bias = node.type == Type::kF32 && program.kind == ProgramKind::kScoreMod;
    if (bias && !is_mask_load(program, motion, node)) {
      continue;
    }
    const Capture& capture = program.captures[static_cast<size_t>(node.payload)];
    const auto at = std::find(problem.captures.begin(), problem.captures.end(), capture);
    const auto index = static_cast<size_t>(at - problem.captures.begin());
    const bool several_rows = node.operands.size() > 1 && moves(node.operands[node.operands.size() - 2]);
    const int rows = several_rows ? kCaptureRows : 1;
    const auto known =
        std::find_if(bounded.begin(), bounded.end(), [&](const BoundedCapture& other) { return other.index == index; });
    if (known == bounded.end()) {
      bounded.push_back({index, rows});
    } else {
      known->rows = std::min(known->rows, rows);
    }
  }
}

constexpr const char* kFunction = "__device__ __forceinline__";

// What the two kinds of program differ in.
struct Names {
  const char* function;  // score_mod
  const char* prefix;    // score
  const char* type;      // Score
  const char* upper;     // SCORE
  const char* result;    // float
  const char* before;    // parameters before the position
  const char* begin;     // first statements
};
constexpr Names kScoreNames = {
    "score_mod", "score", "Score", "SCORE", "float", "float raw, ", "  const float score = raw * params.scale;\n"};
constexpr Names kGradientNames = {"score_gradient", "gradient", "Gradient", "GRADIENT", "float", "float raw, ", ""};
constexpr Names kMaskNames = {"mask_mod", "mask", "Mask", "MASK", "bool", "", ""};

// <name>Row, <name>Column and what gives them: the program's searches that depend on the query or the key alone, which
// are loops, and which no compiler computes once where they stand many times. Two columns agree if no search changes
// from the one key to the other, and then none does between them.
std::string emit_searches(const Problem& problem, const Program& program, const Names& names) {
  Emitter rows(problem, program, Part::kRow);
  Emitter columns(problem, program, Part::kColumn);
  const std::vector<size_t> of_rows = rows.nodes_that(&Emitter::is_row_search);
  const std::vector<size_t> of_columns = columns.nodes_that(&Emitter::is_column_search);
  std::string text;
  const auto add_struct = [&](const char* suffix, const std::vector<size_t>& nodes) {
    text += fmt::format("struct {}{} {{", names.type, suffix);
    for (const size_t i : nodes) {
      text += fmt::format(" i32 v{};", i);
    }
    text += " };\n";
  };
  add_struct("Row", of_rows);
  add_struct("Column", of_columns);
  text += fmt::format("{} {}Row {}_row(int b, int h, int q, const ForwardParams& params) {{\n", kFunction, names.type,
                      names.prefix);
  text += of_rows.empty() ? "  return {};\n}\n" : rows.searches() + "}\n";
  text += fmt::format("{} {}Column {}_column(int b, int kv, const ForwardParams& params) {{\n", kFunction, names.type,
                      names.prefix);
  text += of_columns.empty() ? "  return {};\n}\n" : columns.searches() + "}\n";
  text +=
      fmt::format("{0} bool agree(const {1}Column& x, const {1}Column& y) {{\n  return true", kFunction, names.type);
  for (const size_t i : of_columns) {
    text += fmt::format(" && x.v{0} == y.v{0}", i);
  }
  return text + fmt::format(";\n}}\n#define FL_{}_COLUMNS {:d}\n\n", names.upper, !of_columns.empty());
}

// A program and all that the kernels ask of it beside its intervals.
std::string emit_program(const Problem& problem, const Program& program, const Names& names) {
  const auto head = [&](const char* suffix, const char* query) {
    return fmt::format(
        "{} {} {}{}({}const {}Row& row, const {}Column& column, int b, int h, {}, int kv_first, int key, "
        "const ForwardParams& params) {{\n{}  const int kv = kv_first + key;\n",
        kFunction, names.result, names.function, suffix, names.before, names.type, names.type, query, names.begin);
  };
  std::string text = emit_searches(problem, program, names);
  text += head("", "int q") + Emitter(problem, program, Part::kWhole).body() + "}\n\n";
  const bool straight = !Emitter(problem, program, Part::kWhole).nodes_that(&Emitter::is_straight_load).empty();
  text += fmt::format("#define FL_{}_STRAIGHT_LOADS {:d}\n", names.upper, straight);
  if (straight) {
    text += head("_inside", "int q_first, int row_offset") + "  const int q = q_first + row_offset;\n";
    text += Emitter(problem, program, Part::kInside).body() + "}\n\n";
    text += fmt::format(
        "{} bool {}_loads_inside(int b, int h, int q, int kv_first, int last_key, const ForwardParams& params) {{\n",
        kFunction, names.prefix);
    text += Emitter(problem, program, Part::kRow).bounds_check() + "}\n\n";
  }
  const bool zeros = program.kind == ProgramKind::kScoreMod && adds_masks_only(program);
  if (zeros) {
    text += head("_of_zeros", "int q") + Emitter(problem, program, Part::kZeros).body() + "}\n\n";
  }
  return text + fmt::format("#define FL_{}_ZEROS {:d}\n", names.upper, zeros);
}

}  // namespace

std::vector<BoundedCapture> bounded_captures(const Problem& problem) {
  std::vector<BoundedCapture> bounded;
  if (problem.mask_mod) {
    add_bounded_captures(problem, *problem.mask_mod, bounded);
  }
  if (masks(problem.score_mod)) {
    add_bounded_captures(problem, *problem.score_mod, bounded);
  }
  return bounded;
}

std::string emit_gradient(const Problem& problem, const std::vector<bool>& wants_gradient) {
  const std::optional<score::Derivative> derivative = problem::differentiate(problem, wants_gradient);
  std::string text = "#pragma once\n#include \"capture_gradients.cuh\"\n#include \"program.cuh\"\n\n";
  const auto searches = [](const Program& program) {
    return std::ranges::any_of(program.nodes, [](const Node& node) { return node.op == Op::k_search; });
  };
  text += fmt::format("#define FL_MASK_SEARCHES {:d}\n", problem.mask_mod && searches(*problem.mask_mod));
  text += fmt::format("#define FL_GRADIENT_SEARCHES {:d}\n", derivative && searches(derivative->body));
  text += fmt::format("#define FL_CAPTURE_GRADIENTS {:d}\n\n", derivative && !derivative->loads.empty());
  text += "namespace flashlift::cuda {\n\n";
  const std::string at =
      "const GradientRow& row, const GradientColumn& column, int b, int h, int q, int kv_first, int "
      "key, const ForwardParams& params";
  const std::string head = fmt::format("{} float score_gradient(float raw, {}, float& derivative) {{\n", kFunction, at);
  if (!derivative) {
    text += fmt::format(
        "struct GradientRow {{}};\nstruct GradientColumn {{}};\n"
        "{0} GradientRow gradient_row(int, int, int, const ForwardParams&) {{ return {{}}; }}\n"
        "{0} GradientColumn gradient_column(int, int, const ForwardParams&) {{ return {{}}; }}\n"
        "{1}  derivative = 1.0f;\n  return raw * params.scale;\n}}\n\n",
        kFunction, head);
    return text + "}  // namespace flashlift::cuda\n";
  }
  const Program& body = derivative->body;
  const std::string begin = "  const float score = raw * params.scale;\n  const int kv = kv_first + key;\n";
  text += emit_searches(problem, body, kGradientNames);
  text += head + begin + Emitter(problem, body, Part::kWhole).derivative_body(derivative->d_score) + "}\n\n";
  if (!derivative->loads.empty()) {
    text += "struct GradientSums {\n";
    for (size_t i = 0; i < derivative->loads.size(); ++i) {
      if (Emitter(problem, body, Part::kWhole).is_row_load(derivative->loads[i])) {
        text += fmt::format("  float load{}[2];\n", i);
      }
    }
    text += fmt::format(
        "}};\n{} void add_captured(float ds, float raw, {}, const CaptureArgument* gradients, GradientSums& "
        "sums, int r) {{\n{}{}}}\n\n",
        kFunction, at, begin, Emitter(problem, body, Part::kWhole).captured_body(derivative->loads));
    text += fmt::format(
        "{} void add_captured_rows(const GradientSums& sums, int r, int b, int h, int q, bool inside, const "
        "ForwardParams& params, const CaptureArgument* gradients) {{\n{}}}\n\n",
        kFunction, Emitter(problem, body, Part::kRow).captured_rows_body(derivative->loads));
  }
  return text + "}  // namespace flashlift::cuda\n";
}

std::string emit_programs(const Problem& problem) {
  std::string text = "#pragma once\n#include \"capture_bounds.cuh\"\n#include \"interval.cuh\"\n\n";
  text += "namespace flashlift::cuda {\n\n";
  if (problem.score_mod) {
    text += fmt::format("#define FL_SCORE_UNIT {}\n\n", float_text(last_factor(problem, *problem.score_mod).factor));
    text += emit_program(problem, *problem.score_mod, kScoreNames);
  } else {  // for a scale that cannot be folded into the softmax
    text += fmt::format(
        "#define FL_SCORE_UNIT 1.0f\n#define FL_SCORE_COLUMNS 0\n#define FL_SCORE_STRAIGHT_LOADS 0\n"
        "#define FL_SCORE_ZEROS 0\n"
        "struct ScoreRow {{}};\nstruct ScoreColumn {{}};\n"
        "{0} ScoreRow score_row(int, int, int, const ForwardParams&) {{ return {{}}; }}\n"
        "{0} ScoreColumn score_column(int, int, const ForwardParams&) {{ return {{}}; }}\n"
        "{0} float score_mod(float raw, const ScoreRow&, const ScoreColumn&, int, int, int, int, int, const "
        "ForwardParams& "
        "params) {{ return raw * params.scale; }}\n\n",
        kFunction);
  }
  const char* tile_parameters =
      "int b, int h_first, int h_last, int q_first, int q_last, int kv_first, int kv_last, const ForwardParams& params";
  text += fmt::format("#define FL_SCORE_LOADS {:d}\n", loads_by_key(problem.score_mod));
  text += fmt::format("#define FL_SCORE_MASKS {:d}\n\n", masks(problem.score_mod));
  if (masks(problem.score_mod)) {
    text += fmt::format("{} ScoreTile score_tile({}) {{\n", kFunction, tile_parameters);
    text += Emitter(problem, *problem.score_mod, Part::kInterval).body() + "}\n\n";
  }
  if (problem.mask_mod) {
    text += emit_program(problem, *problem.mask_mod, kMaskNames);
    text += fmt::format("{} int mask_interval({}) {{\n", kFunction, tile_parameters);
    text += Emitter(problem, *problem.mask_mod, Part::kInterval).body() + "}\n\n";
  }
  for (const BoundedCapture& bounded : bounded_captures(problem)) {
    const Capture& capture = problem.captures[bounded.index];
    text += fmt::format(
        "extern \"C\" __global__ void flashlift_bounds_{}(const CaptureArgument capture, longlong2* bounds, i64 "
        "blocks) "
        "{{\n  capture_bounds<{}, {}>(capture, {}, bounds, blocks);\n}}\n\n",
        bounded.index, element_name(capture.dtype), bounded.rows, capture.shape.size());
  }
  return text + "}  // namespace flashlift::cuda\n";
}

}  // namespace flashlift::cuda
