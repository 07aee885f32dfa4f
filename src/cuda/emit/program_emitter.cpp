#include "cuda/emit/program_emitter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

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
    case Op::k_tanh:
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

class Emitter {
 public:
  Emitter(const Problem& problem, const Program& program, bool interval)
      : problem_(problem), program_(program), interval_(interval) {
    find_steps();
  }

  // Statements that compute every node, the result last.
  std::string body() {
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      text_ += fmt::format("  const {} v{} = {};\n", interval_ ? "auto" : type_name(program_.nodes[i].type), i,
                           value(program_.nodes[i]));
      if (steps_[i] != 0) {
        text_ += fmt::format("  const i32 first{} = {};\n", i, value_at_first_key(program_.nodes[i]));
      }
    }
    const bool score_mod = program_.kind == ProgramKind::kScoreMod;
    if (interval_) {
      text_ += score_mod ? fmt::format("  return surely_masked(v{});\n", program_.result)
                         : fmt::format("  return v{}.possible;\n", program_.result);
    } else {
      text_ += fmt::format("  return v{};\n", score_mod ? last_factor(problem_, program_).inner : program_.result);
    }
    return std::move(text_);
  }

 private:
  // How much an i32 value grows from key to key, where that is constant: the sums with kv. Of such a value, the one at
  // the thread's first key is converted to f32 once, and a constant added for each other key: conversions are slow.
  void find_steps() {
    steps_.assign(program_.nodes.size(), 0);
    if (interval_ || problem_.dtype == DType::kF32 || program_.kind != ProgramKind::kScoreMod) {
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

  std::string value(const Node& node) const {
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
      case TypeRule::kLoad:
      case TypeRule::kSearch:
        return load(node);
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
    const std::string name = (length ? "params." : "") + std::string(info(op).name);
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
      if (const std::optional<std::string> product = product_with_constant(node)) {
        return *product;
      }
    }
    return fmt::format("{}_{}({})", interval_ ? "iv" : "op", info(node.op).name, operands(node));
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

  std::string load(const Node& node) const {
    const Capture& capture = program_.captures[static_cast<size_t>(node.payload)];
    const auto found = std::find(problem_.captures.begin(), problem_.captures.end(), capture);
    const std::string indices = operands(node);
    return fmt::format("{}_{}<{}>(params.captures[{}]{}{})", interval_ ? "iv" : "op", info(node.op).name,
                       element_name(capture.dtype), found - problem_.captures.begin(), indices.empty() ? "" : ", ",
                       indices);
  }

  const Problem& problem_;
  const Program& program_;
  const bool interval_;
  std::vector<int> steps_;
  std::string text_;
};

// May a score_mod mask, by -inf? Only then are its intervals worth evaluating.
bool masks(const std::optional<Program>& score_mod) {
  return score_mod && std::any_of(score_mod->nodes.begin(), score_mod->nodes.end(), [](const Node& node) {
           return node.op == Op::k_constant && node.type == Type::kF32 &&
                  std::bit_cast<float>(static_cast<uint32_t>(node.payload)) == -INFINITY;
         });
}

// Does it load anything at a position that moves with the keys?
bool loads_by_key(const std::optional<Program>& score_mod) {
  if (!score_mod) {
    return false;
  }
  std::vector<bool> moves(score_mod->nodes.size());
  for (size_t i = 0; i < score_mod->nodes.size(); ++i) {
    const Node& node = score_mod->nodes[i];
    moves[i] = node.op == Op::k_kv ||
               std::any_of(node.operands.begin(), node.operands.end(), [&](ValueId id) { return moves[id]; });
    if (reads_capture(node.op) && moves[i]) {
      return true;
    }
  }
  return false;
}

void add_bounded_captures(const Problem& problem, const Program& program, std::vector<size_t>& bounded) {
  std::vector<bool> moves(program.nodes.size());  // with q or kv
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    moves[i] = node.op == Op::k_q || node.op == Op::k_kv ||
               std::any_of(node.operands.begin(), node.operands.end(), [&](ValueId id) { return moves[id]; });
    if (node.op != Op::k_load || node.operands.empty() || !moves[node.operands.back()]) {
      continue;
    }
    const Capture& capture = program.captures[static_cast<size_t>(node.payload)];
    const auto found = std::find(problem.captures.begin(), problem.captures.end(), capture);
    const auto index = static_cast<size_t>(found - problem.captures.begin());
    if (!is_float(capture.dtype) && std::find(bounded.begin(), bounded.end(), index) == bounded.end()) {
      bounded.push_back(index);
    }
  }
}

}  // namespace

std::vector<size_t> bounded_captures(const Problem& problem) {
  std::vector<size_t> bounded;
  if (problem.mask_mod) {
    add_bounded_captures(problem, *problem.mask_mod, bounded);
  }
  if (masks(problem.score_mod)) {
    add_bounded_captures(problem, *problem.score_mod, bounded);
  }
  return bounded;
}

std::string emit_programs(const Problem& problem) {
  std::string text = "#pragma once\n#include \"capture_bounds.cuh\"\n#include \"interval.cuh\"\n\n";
  text += "namespace flashlift::cuda {\n\n";
  const char* qualifiers = "__device__ __forceinline__";
  const char* score_parameters = "float raw, int b, int h, int q, int kv_first, int key, const ForwardParams& params";
  if (problem.score_mod) {
    const float unit = last_factor(problem, *problem.score_mod).factor;
    text += fmt::format("#define FL_SCORE_UNIT {}\n\n", float_text(unit));
    text += fmt::format("{} float score_mod({}) {{\n", qualifiers, score_parameters);
    text += "  const float score = raw * params.scale;\n  const int kv = kv_first + key;\n";
    text += Emitter(problem, *problem.score_mod, false).body() + "}\n\n";
  } else {  // for a scale that cannot be folded into the softmax
    text += fmt::format("#define FL_SCORE_UNIT 1.0f\n\n{} float score_mod({}) {{ return raw * params.scale; }}\n\n",
                        qualifiers, score_parameters);
  }
  const char* tile_parameters =
      "int b, int h_first, int h_last, int q_first, int q_last, int kv_first, int kv_last, const ForwardParams& params";
  text += fmt::format("#define FL_SCORE_LOADS {:d}\n", loads_by_key(problem.score_mod));
  text += fmt::format("#define FL_SCORE_MASKS {:d}\n\n", masks(problem.score_mod));
  if (masks(problem.score_mod)) {
    text += fmt::format("{} bool score_is_masked({}) {{\n", qualifiers, tile_parameters);
    text += Emitter(problem, *problem.score_mod, true).body() + "}\n\n";
  }
  if (problem.mask_mod) {
    text += fmt::format("{} bool mask_mod(int b, int h, int q, int kv, const ForwardParams& params) {{\n", qualifiers);
    text += Emitter(problem, *problem.mask_mod, false).body() + "}\n\n";
    text += fmt::format("{} int mask_interval({}) {{\n", qualifiers, tile_parameters);
    text += Emitter(problem, *problem.mask_mod, true).body() + "}\n\n";
  }
  for (const size_t index : bounded_captures(problem)) {
    const Capture& capture = problem.captures[index];
    text += fmt::format(
        "extern \"C\" __global__ void flashlift_bounds_{}(const CaptureArgument capture, i64* bounds, i64 blocks) {{\n"
        "  capture_bounds<{}>(capture, {}, bounds, blocks);\n}}\n\n",
        index, element_name(capture.dtype), capture.shape.size());
  }
  return text + "}  // namespace flashlift::cuda\n";
}

}  // namespace flashlift::cuda
