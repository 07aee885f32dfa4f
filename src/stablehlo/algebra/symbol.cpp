#include "stablehlo/algebra/symbol.h"

#include <array>
#include <bit>
#include <cmath>

#include "score/scalar.h"
#include "score/verify.h"

namespace flashlift::stablehlo {

SymId SymArena::intern(Sym sym) {
  for (const SymId arg : sym.args) {
    sym.atoms |= syms_[arg].atoms;
    sym.has_score |= syms_[arg].has_score;
  }
  if (sym.kind == SymKind::kReduce) {
    for (size_t i = 2; i < sym.spec.size(); i += 2) {
      if (sym.spec[i] >= 0) {
        sym.atoms &= ~atom_bit(static_cast<int>(sym.spec[i]));
      }
    }
  }
  auto key = std::make_tuple(sym.kind, sym.op, sym.type, sym.payload, sym.args, sym.spec);
  const auto [it, is_new] = existing_.emplace(std::move(key), static_cast<SymId>(syms_.size()));
  if (is_new) {
    syms_.push_back(std::move(sym));
  }
  return it->second;
}

SymId SymArena::constant(Type type, int64_t payload) {
  return intern({.kind = SymKind::kConstant, .type = type, .args = {}, .payload = payload, .spec = {}});
}

SymId SymArena::f32(float value) { return constant(Type::kF32, std::bit_cast<uint32_t>(value)); }
SymId SymArena::i32(int64_t value) { return constant(Type::kI32, static_cast<int32_t>(value)); }

SymId SymArena::atom(int number) {
  return intern({.kind = SymKind::kAtom,
                 .type = Type::kI32,
                 .args = {},
                 .payload = number,
                 .spec = {},
                 .atoms = atom_bit(number)});
}

SymId SymArena::score(AtomSet atoms) {
  return intern({.kind = SymKind::kScore,
                 .type = Type::kF32,
                 .args = {},
                 .payload = static_cast<int64_t>(atoms),
                 .spec = {},
                 .atoms = atoms,
                 .has_score = true});
}

SymId SymArena::load(int64_t leaf, Type type, std::vector<SymId> indices) {
  return intern({.kind = SymKind::kLoad, .type = type, .args = std::move(indices), .payload = leaf, .spec = {}});
}

SymId SymArena::reduce(ReduceKind kind, const std::vector<ReducePiece>& pieces) {
  Sym sym{.kind = SymKind::kReduce, .type = syms_[pieces.front().body].type, .args = {}, .spec = {}};
  sym.spec.push_back(static_cast<int64_t>(kind));
  for (const ReducePiece& piece : pieces) {
    sym.args.push_back(piece.body);
    sym.spec.push_back(piece.size);
    sym.spec.push_back(piece.atom);
  }
  return intern(std::move(sym));
}

std::vector<ReducePiece> SymArena::pieces(SymId id) const {
  const Sym& sym = syms_[id];
  std::vector<ReducePiece> result;
  for (size_t i = 0; i < sym.args.size(); ++i) {
    result.push_back({.body = sym.args[i], .size = sym.spec[1 + 2 * i], .atom = static_cast<int>(sym.spec[2 + 2 * i])});
  }
  return result;
}

bool SymArena::is_f32(SymId id, float value) const {
  return is_constant(id) && syms_[id].type == Type::kF32 && syms_[id].payload == std::bit_cast<uint32_t>(value);
}

float SymArena::f32_value(SymId id) const { return std::bit_cast<float>(static_cast<uint32_t>(syms_[id].payload)); }

SymId SymArena::fold(Op op, Type type, const std::vector<SymId>& args) {
  std::array<score::Scalar<float>, 3> values;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!is_constant(args[i])) {
      return kNoSym;
    }
    values[i].i = syms_[args[i]].payload;
    if (syms_[args[i]].type == Type::kF32) {
      values[i].f = f32_value(args[i]);
    }
  }
  const auto value = score::apply<float>(op, type, syms_[args.back()].type, {values.data(), args.size()});
  return type == Type::kF32 ? f32(value.f) : constant(type, value.i);
}

// Rewrites f(c ? k1 : k2, k3) to c ? f(k1, k3) : f(k2, k3), so that arithmetic on masks, such as (1 - mask) * -10000,
// becomes one select.
SymId SymArena::push_into_select(Op op, const std::vector<SymId>& args) {
  SymId select = kNoSym;
  for (const SymId arg : args) {
    if (is_constant(arg)) {
      continue;
    }
    const bool of_constants =
        is_op(arg, Op::k_select) && is_constant(syms_[arg].args[1]) && is_constant(syms_[arg].args[2]);
    if (!of_constants || (select != kNoSym && select != arg)) {
      return kNoSym;
    }
    select = arg;
  }
  if (select == kNoSym) {
    return kNoSym;
  }
  const std::vector<SymId> branches = syms_[select].args;
  std::array<SymId, 2> results{};
  for (int side = 0; side < 2; ++side) {
    std::vector<SymId> side_args = args;
    for (SymId& arg : side_args) {
      arg = arg == select ? branches[1 + side] : arg;
    }
    results[side] = this->op(op, side_args);
  }
  return this->op(Op::k_select, {branches[0], results[0], results[1]});
}

// x op y, where op is `and` or `or`.
SymId SymArena::logical_identity(Op op, Type type, SymId x, SymId y) {
  if (x == y) {
    return x;
  }
  if (type != Type::kI1) {
    return kNoSym;
  }
  const bool is_and = op == Op::k_and;
  for (const auto& [constant_side, other] : {std::pair(x, y), std::pair(y, x)}) {
    if (is_constant(constant_side)) {
      return (syms_[constant_side].payload != 0) == is_and ? other : constant_side;
    }
  }
  return kNoSym;
}

// x ? y : z
SymId SymArena::select_identity(Type type, SymId x, SymId y, SymId z) {
  if (is_constant(x)) {
    return syms_[x].payload != 0 ? y : z;
  }
  if (y == z) {
    return y;
  }
  if (is_op(x, Op::k_not)) {
    return this->op(Op::k_select, {syms_[x].args[0], z, y});
  }
  if (type == Type::kI1 && is_constant(y) && is_constant(z)) {  // the two differ
    return syms_[y].payload != 0 ? x : this->op(Op::k_not, {x});
  }
  if (type == Type::kI1 && is_constant(z)) {  // c ? y : false, c ? y : true
    return syms_[z].payload == 0 ? this->op(Op::k_and, {x, y}) : this->op(Op::k_or, {this->op(Op::k_not, {x}), y});
  }
  if (type == Type::kI1 && is_constant(y)) {  // c ? true : z, c ? false : z
    return syms_[y].payload != 0 ? this->op(Op::k_or, {x, z}) : this->op(Op::k_and, {this->op(Op::k_not, {x}), z});
  }
  return kNoSym;
}

SymId SymArena::exp_identity(SymId x) {
  constexpr float kZeroBelow = -104;  // e to this is less than half of the smallest number
  std::vector<SymId> branches = is_op(x, Op::k_select) ? syms_[x].args : std::vector<SymId>(3, x);
  bool is_any_zero = false;
  for (const size_t side : {1U, 2U}) {
    if (is_constant(branches[side]) && f32_value(branches[side]) < kZeroBelow &&
        !std::isinf(f32_value(branches[side]))) {
      branches[side] = f32(-INFINITY);
      is_any_zero = true;
    }
  }
  return is_any_zero ? this->op(Op::k_exp, {this->op(Op::k_select, branches)}) : kNoSym;
}

SymId SymArena::pow_identity(SymId x, SymId y) {
  // Only for an exponent that contains the score: ALiBi's slopes, 2^-h, are powers that an exponential would round.
  if (is_constant(x) && f32_value(x) > 0 && std::isfinite(f32_value(x)) && syms_[y].has_score) {
    const auto logarithm = static_cast<float>(std::log(static_cast<double>(f32_value(x))));
    return this->op(Op::k_exp, {this->op(Op::k_mul, {y, f32(logarithm)})});
  }
  if (is_f32(y, 1.0f)) {
    return x;
  }
  return is_f32(y, -1.0f) ? this->op(Op::k_div, {f32(1.0f), x}) : kNoSym;
}

SymId SymArena::identity(Op op, Type type, const std::vector<SymId>& args) {
  const SymId x = args[0];
  const SymId y = args.size() > 1 ? args[1] : kNoSym;
  const auto is_integer = [&](SymId id, int64_t value) {
    return is_constant(id) && syms_[id].type != Type::kF32 && syms_[id].payload == value;
  };
  // Masks of queries and of keys may be multiplied as numbers: their product is the conjunction of the conditions.
  const auto is_zero_or_one = [&](SymId id) {
    return is_op(id, Op::k_select) && (is_integer(syms_[id].args[1], 1) || is_f32(syms_[id].args[1], 1.0f)) &&
           (is_integer(syms_[id].args[2], 0) || is_f32(syms_[id].args[2], 0.0f));
  };
  const auto both_hold = [&](SymId one, SymId other) {
    const std::vector<SymId> numbers = syms_[one].args;
    const SymId condition = this->op(Op::k_and, {numbers[0], syms_[other].args[0]});
    return this->op(Op::k_select, {condition, numbers[1], numbers[2]});
  };
  switch (op) {
    case Op::k_and:
    case Op::k_or:
      return logical_identity(op, type, x, y);
    case Op::k_not:
      return is_op(x, Op::k_not) ? syms_[x].args[0] : kNoSym;
    case Op::k_select:
      return select_identity(type, x, y, args[2]);
    case Op::k_add:
      // x + 0 differs from x only in the sign of zero, which has no effect on a softmax.
      if (is_integer(y, 0) || is_f32(y, 0.0f) || is_f32(y, -0.0f)) {
        return x;
      }
      return is_integer(x, 0) || is_f32(x, 0.0f) || is_f32(x, -0.0f) ? y : kNoSym;
    case Op::k_sub:
      return is_integer(y, 0) || is_f32(y, 0.0f) ? x : kNoSym;
    case Op::k_mul:
      if (is_integer(y, 1) || is_f32(y, 1.0f)) {
        return x;
      }
      if (is_integer(x, 1) || is_f32(x, 1.0f)) {
        return y;
      }
      return is_zero_or_one(x) && is_zero_or_one(y) ? both_hold(x, y) : kNoSym;
    case Op::k_div:
      return is_integer(y, 1) || is_f32(y, 1.0f) ? x : kNoSym;
    case Op::k_exp:
      return exp_identity(x);
    case Op::k_pow:
      return pow_identity(x, y);
    case Op::k_abs:
      return is_op(x, Op::k_exp) ? x : kNoSym;
    case Op::k_max:
      return is_f32(y, -INFINITY) ? x : (is_f32(x, -INFINITY) ? y : kNoSym);
    case Op::k_min:
      if (is_zero_or_one(x) && is_zero_or_one(y)) {
        return both_hold(x, y);
      }
      return is_f32(y, INFINITY) ? x : (is_f32(x, INFINITY) ? y : kNoSym);
    case Op::k_eq:
    case Op::k_ne:
      if (syms_[x].type == Type::kI1 && is_constant(y)) {
        return (syms_[y].payload != 0) == (op == Op::k_eq) ? x : this->op(Op::k_not, {x});
      }
      return kNoSym;
    case Op::k_gt:
      return this->op(Op::k_lt, {y, x});
    case Op::k_ge:
      return this->op(Op::k_le, {y, x});
    case Op::k_to_i32:
    case Op::k_to_i64:
    case Op::k_to_f32:
      if (syms_[x].type == type) {
        return x;
      }
      if (syms_[x].type == Type::kI1) {
        return this->op(Op::k_select, {x, convert(boolean(true), type), convert(boolean(false), type)});
      }
      return kNoSym;
    case Op::k_to_i1:
      return syms_[x].type == Type::kI1 ? x : kNoSym;
    default:
      return kNoSym;
  }
}

SymId SymArena::op(Op op, std::vector<SymId> args) {
  std::vector<Type> types;
  for (const SymId arg : args) {
    types.push_back(syms_[arg].type);
  }
  const auto type = score::result_type(op, types, Type::kF32);
  if (!type.ok()) {
    return kNoSym;
  }
  if (const SymId folded = fold(op, *type, args); folded != kNoSym) {
    return folded;
  }
  if (const SymId simpler = identity(op, *type, args); simpler != kNoSym) {
    return simpler;
  }
  if (op != Op::k_select) {
    if (const SymId pushed = push_into_select(op, args); pushed != kNoSym) {
      return pushed;
    }
  }
  if ((op == Op::k_and || op == Op::k_or || op == Op::k_eq || op == Op::k_ne) && args[1] < args[0]) {
    std::swap(args[0], args[1]);
  }
  return intern({.kind = SymKind::kOp, .op = op, .type = *type, .args = std::move(args), .spec = {}});
}

SymId SymArena::convert(SymId value, Type type) {
  if (syms_[value].type == type) {
    return value;
  }
  switch (type) {
    case Type::kI1:
      return op(Op::k_to_i1, {value});
    case Type::kI32:
      return op(Op::k_to_i32, {value});
    case Type::kI64:
      return op(Op::k_to_i64, {value});
    case Type::kF32:
      return op(Op::k_to_f32, {value});
  }
  return value;
}

SymId SymArena::replace_memo(SymId id, const std::map<SymId, SymId>& known, bool in_results,
                             std::map<SymId, SymId>& memo) {
  if (const auto found = known.find(id); found != known.end()) {
    return found->second;
  }
  if (syms_[id].kind != SymKind::kOp && syms_[id].kind != SymKind::kLoad) {
    return id;
  }
  if (const auto found = memo.find(id); found != memo.end()) {
    return found->second;
  }
  ++replaced_parts_;
  const Sym sym = syms_[id];
  std::vector<SymId> args;
  for (const SymId arg : sym.args) {
    args.push_back(replace_memo(arg, known, in_results, memo));
  }
  SymId result = args == sym.args             ? id
                 : sym.kind == SymKind::kLoad ? load(sym.payload, sym.type, args)
                                              : op(sym.op, args);
  if (const auto found = known.find(result); in_results && found != known.end()) {
    result = found->second;
  }
  memo.emplace(id, result);
  return result;
}

SymId SymArena::replace(SymId id, SymId from, SymId to) {
  std::map<SymId, SymId> memo;
  return replace_memo(id, {{from, to}}, false, memo);
}

SymId SymArena::replace_known(SymId id, const std::map<SymId, SymId>& known) {
  std::map<SymId, SymId> memo;
  return replace_memo(id, known, true, memo);
}

}  // namespace flashlift::stablehlo
