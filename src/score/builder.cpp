#include "flashlift/builder.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "score/verify.h"
#include "support/counted.h"
#include "support/error.h"

namespace flashlift {
namespace {

thread_local ProgramBuilder* current_builder = nullptr;

// Outside of a trace, operations are recorded in an unused builder, so that such code does not crash.
ProgramBuilder& active_builder() {
  thread_local ProgramBuilder scratch(ProgramKind::kScoreMod);
  return current_builder != nullptr ? *current_builder : scratch;
}

Expr promote(Expr value, Type type) { return active_builder().convert(value, type); }

Expr binary(Op op, Expr x, Expr y) {
  const Type type = std::max(x.type(), y.type());
  return active_builder().apply(op, {promote(x, type), promote(y, type)});
}

// Arithmetic on booleans treats them as 0 and 1, as in C++.
Expr arithmetic(Op op, Expr x, Expr y) {
  const Type type = std::max({x.type(), y.type(), Type::kI32});
  return active_builder().apply(op, {promote(x, type), promote(y, type)});
}

Expr arithmetic(Op op, Expr x) { return active_builder().apply(op, {promote(x, std::max(x.type(), Type::kI32))}); }

Expr unary_float(Op op, Expr x) { return active_builder().apply(op, {promote(x, Type::kF32)}); }

}  // namespace

Expr::Expr(int value) : type_(Type::kI32), bits_(value) {}
Expr::Expr(int64_t value) : type_(Type::kI64), bits_(value) {}
Expr::Expr(float value) : type_(Type::kF32), bits_(std::bit_cast<uint32_t>(value)) {}

Expr Captured::load(const std::vector<Expr>& indices) const { return active_builder().load(capture_, indices); }
Expr Captured::search(Expr x) const { return active_builder().search(capture_, x); }

ProgramBuilder::ProgramBuilder(ProgramKind kind) {
  static constinit std::atomic<uint64_t> traces = 0;
  program_.kind = kind;
  trace_ = ++traces;
}

ProgramBuilder* ProgramBuilder::current() { return current_builder; }

ProgramBuilder::Scope::Scope(ProgramBuilder& builder) : previous_(current_builder) { current_builder = &builder; }
ProgramBuilder::Scope::~Scope() { current_builder = previous_; }

void ProgramBuilder::fail(Error error) {
  if (!error_) {
    error_ = std::move(error);
  }
}

Expr ProgramBuilder::add_node(Node node) {
  if (error_) {
    return Expr(node.type, 0, trace_);  // finish() returns the error and no program
  }
  std::string key = fmt::format("{} {} {}", static_cast<int>(node.op), static_cast<int>(node.type), node.payload);
  for (const ValueId operand : node.operands) {
    key += fmt::format(" {}", operand);
  }
  const auto [it, is_new] = existing_.emplace(std::move(key), static_cast<ValueId>(program_.nodes.size()));
  const Type type = node.type;
  if (is_new && program_.nodes.size() == kMaxProgramNodes) {
    fail(invalid_argument("a program has at most {} nodes, and this function records more", kMaxProgramNodes));
  } else if (is_new) {
    program_.nodes.push_back(std::move(node));
  }
  return Expr(type, it->second, trace_);
}

ValueId ProgramBuilder::materialize(const Expr& value) {
  if (value.is_constant_) {
    return constant(value.type_, value.bits_).id_;
  }
  if (value.trace_ != trace_) {
    fail(invalid_argument(
        "an Expr of another trace, or computed outside of a trace, is used; expected constants, the inputs of this "
        "function, and what it computes from them"));
    return constant(value.type_, 0).id_;
  }
  return value.id_;
}

Expr ProgramBuilder::input(Op op) {
  return add_node({.op = op, .type = op == Op::k_score ? Type::kF32 : Type::kI32, .operands = {}});
}

Expr ProgramBuilder::constant(Type type, int64_t bits) {
  return add_node({.op = Op::k_constant, .type = type, .operands = {}, .payload = bits});
}

Expr ProgramBuilder::apply(Op op, const std::vector<Expr>& operands) {
  Node node{.op = op, .type = Type::kF32, .operands = {}};
  std::vector<Type> types;
  for (const Expr& operand : operands) {
    node.operands.push_back(materialize(operand));
    types.push_back(operand.type());
  }
  const Result<Type> type = score::result_type(op, types, Type::kF32);
  if (!type.ok()) {
    fail(type.error());
    return constant(Type::kF32, 0);
  }
  node.type = *type;
  return add_node(std::move(node));
}

Expr ProgramBuilder::convert(Expr value, Type type) {
  if (value.type() == type) {
    return value;
  }
  switch (type) {
    case Type::kI1:
      return apply(Op::k_to_i1, {value});
    case Type::kI32:
      return apply(Op::k_to_i32, {value});
    case Type::kI64:
      return apply(Op::k_to_i64, {value});
    case Type::kF32:
      return apply(Op::k_to_f32, {value});
  }
  return value;
}

Expr ProgramBuilder::read(Op op, Type type, const Capture& capture, const std::vector<Expr>& operands) {
  const auto found = std::find_if(program_.captures.begin(), program_.captures.end(),
                                  [&](const Capture& other) { return other.name == capture.name; });
  const int64_t index = found - program_.captures.begin();
  if (found == program_.captures.end()) {
    program_.captures.push_back(capture);
  } else if (!(*found == capture)) {
    fail(invalid_argument("two different captured tensors are named `{}`", capture.name));
  }
  if (operands.size() != capture.shape.size()) {
    fail(invalid_argument("captured tensor `{}` has {}, but is read with {}", capture.name,
                          counted(capture.shape.size(), "dimension"), counted(operands.size(), "index", "indices")));
    return constant(type, 0);
  }
  Node node{.op = op, .type = type, .operands = {}, .payload = index};
  for (const Expr& i : operands) {
    if (i.type() != Type::kI32 && i.type() != Type::kI64) {
      fail(invalid_argument("captured tensor `{}` is indexed by {}, expected i32 or i64", capture.name,
                            to_string(i.type())));
    }
    node.operands.push_back(materialize(i));
  }
  return add_node(std::move(node));
}

Expr ProgramBuilder::load(const Capture& capture, const std::vector<Expr>& indices) {
  return read(Op::k_load, scalar_type(capture.dtype), capture, indices);
}

Expr ProgramBuilder::search(const Capture& capture, Expr x) { return read(Op::k_search, Type::kI32, capture, {x}); }

Result<Program> ProgramBuilder::finish(Expr result) {
  if (error_) {
    return *error_;
  }
  const bool is_score = program_.kind == ProgramKind::kScoreMod;
  if (is_score && result.type() == Type::kI1) {
    return invalid_argument("a score_mod gives i1, expected a score; a function that keeps keys is a mask_mod");
  }
  // As a truth value, 0 of an added mask of 0 and -inf would mask the keys that it keeps.
  if (!is_score && result.type() == Type::kF32) {
    return invalid_argument(
        "a mask_mod gives f32, expected i1, true where a key is kept; a function of scores is a score_mod");
  }
  const Type want = is_score ? Type::kF32 : Type::kI1;
  program_.result = materialize(convert(result, want));
  if (error_) {  // the result is of another trace
    return *error_;
  }
  FLASHLIFT_RETURN_IF_ERROR(score::verify(program_));
  return program_;
}

Expr operator+(Expr x, Expr y) { return arithmetic(Op::k_add, x, y); }
Expr operator-(Expr x, Expr y) { return arithmetic(Op::k_sub, x, y); }
Expr operator*(Expr x, Expr y) { return arithmetic(Op::k_mul, x, y); }
Expr operator/(Expr x, Expr y) { return arithmetic(Op::k_div, x, y); }
Expr operator%(Expr x, Expr y) { return arithmetic(Op::k_rem, x, y); }
Expr operator-(Expr x) { return arithmetic(Op::k_neg, x); }
Expr operator==(Expr x, Expr y) { return binary(Op::k_eq, x, y); }
Expr operator!=(Expr x, Expr y) { return binary(Op::k_ne, x, y); }
Expr operator<(Expr x, Expr y) { return arithmetic(Op::k_lt, x, y); }
Expr operator<=(Expr x, Expr y) { return arithmetic(Op::k_le, x, y); }
Expr operator>(Expr x, Expr y) { return arithmetic(Op::k_gt, x, y); }
Expr operator>=(Expr x, Expr y) { return arithmetic(Op::k_ge, x, y); }
Expr operator&(Expr x, Expr y) { return binary(Op::k_and, x, y); }
Expr operator|(Expr x, Expr y) { return binary(Op::k_or, x, y); }
Expr operator^(Expr x, Expr y) { return binary(Op::k_xor, x, y); }
Expr operator&&(Expr x, Expr y) { return promote(x, Type::kI1) & promote(y, Type::kI1); }
Expr operator||(Expr x, Expr y) { return promote(x, Type::kI1) | promote(y, Type::kI1); }
Expr operator!(Expr x) { return active_builder().apply(Op::k_not, {promote(x, Type::kI1)}); }
Expr operator~(Expr x) { return active_builder().apply(Op::k_not, {x}); }
Expr operator<<(Expr x, Expr y) { return arithmetic(Op::k_shl, x, y); }
Expr operator>>(Expr x, Expr y) { return arithmetic(Op::k_shr, x, y); }

Expr select(Expr condition, Expr x, Expr y) {
  const Type type = std::max(x.type(), y.type());
  return active_builder().apply(Op::k_select, {promote(condition, Type::kI1), promote(x, type), promote(y, type)});
}
Expr min(Expr x, Expr y) { return arithmetic(Op::k_min, x, y); }
Expr max(Expr x, Expr y) { return arithmetic(Op::k_max, x, y); }
Expr abs(Expr x) { return arithmetic(Op::k_abs, x); }
Expr sign(Expr x) { return arithmetic(Op::k_sign, x); }
Expr is_finite(Expr x) { return unary_float(Op::k_is_finite, x); }
Expr ushr(Expr x, Expr y) { return arithmetic(Op::k_ushr, x, y); }
Expr bitcast_i32(Expr x) { return unary_float(Op::k_bitcast_i32, x); }
Expr bitcast_f32(Expr x) { return active_builder().apply(Op::k_bitcast_f32, {x}); }
Expr floor_div(Expr x, Expr y) { return arithmetic(Op::k_floor_div, x, y); }
Expr mod(Expr x, Expr y) { return arithmetic(Op::k_mod, x, y); }
#define FLASHLIFT_FUNCTION(name, ...) \
  Expr name(Expr x) { return unary_float(Op::k_##name, x); }
#define FLASHLIFT_FUNCTION2(name, ...)                                                             \
  Expr name(Expr x, Expr y) {                                                                      \
    return active_builder().apply(Op::k_##name, {promote(x, Type::kF32), promote(y, Type::kF32)}); \
  }
#define FLASHLIFT_OP(...)
#include "flashlift/ops.def"
Expr to(Type type, Expr x) { return promote(x, type); }
Expr q_len() { return active_builder().input(Op::k_q_len); }
Expr kv_len() { return active_builder().input(Op::k_kv_len); }

}  // namespace flashlift
