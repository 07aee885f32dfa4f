#include "stablehlo/algebra/row_shift.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "score/operation.h"
#include "stablehlo/algebra/lists.h"

namespace flashlift::stablehlo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns m for formulas that replace an infinite m: m is finite ? m : 0, m == -inf ? 0 : m, -inf < m ? m : 0.
SymId without_infinity(const SymArena& arena, SymId m) {
  if (!arena.is_op(m, Op::k_select)) {
    return m;
  }
  const std::vector<SymId>& args = arena[m].args;
  const Sym& condition = arena[args[0]];
  const auto compares = [&](Op op, SymId with) {
    return arena.is_op(args[0], op) && ((condition.args[0] == with && arena.is_f32(condition.args[1], -kInfinity)) ||
                                        (condition.args[1] == with && arena.is_f32(condition.args[0], -kInfinity)));
  };
  if (arena.is_constant(args[2]) && (compares(Op::k_ne, args[1]) || compares(Op::k_lt, args[1]) ||
                                     (arena.is_op(args[0], Op::k_is_finite) && condition.args[0] == args[1]))) {
    return args[1];
  }
  return arena.is_constant(args[1]) && compares(Op::k_eq, args[2]) ? args[2] : m;
}

// The pieces of which m is the maximum. The lowest float has no effect in a maximum of numbers, and is left out.
void pieces_of_maximum(const SymArena& arena, SymId m, std::vector<ReducePiece>& pieces) {
  const SymId id = without_infinity(arena, m);
  if (arena.is_op(id, Op::k_max)) {
    pieces_of_maximum(arena, arena[id].args[0], pieces);
    pieces_of_maximum(arena, arena[id].args[1], pieces);
  } else if (arena[id].kind == SymKind::kReduce && arena.reduce_kind(id) == ReduceKind::kMaximum) {
    append(pieces, arena.pieces(id));
  } else if (!arena.is_constant(id) || arena.f32_value(id) > std::numeric_limits<float>::lowest()) {
    pieces.push_back({.body = id, .size = 1, .atom = -1});
  }
}

// Whether this reduction of a row's scores may be infinite or NaN although each score is a number, or although the row
// has keys. Examples are the minimum of masked scores, and the maximum of fewer scores than are summed.
bool reduces_to_no_number(SymArena& arena, SymId reduction, const Softmax& softmax) {
  // Whether the sum has this condition as a guard, or reads it in a term where the -inf of a masked score was
  // multiplied or added to.
  const auto summed_has = [&](SymId guard) {
    std::vector<SymId> parts = softmax.guards;
    for (const SignedTerm& term : softmax.key_terms) {
      parts.push_back(term.term);
    }
    const SymId condition = arena.is_op(guard, Op::k_not) ? arena[guard].args[0] : guard;
    return any_part(std::move(parts), [&](SymId id, std::vector<SymId>& next) {
      arena.push_args(id, next);
      return id == condition;
    });
  };
  const ReduceKind kind = arena.reduce_kind(reduction);
  const std::vector<ReducePiece> pieces = arena.pieces(reduction);
  return std::any_of(pieces.begin(), pieces.end(), [&](const ReducePiece& piece) {
    const std::vector<SymId> guards = as_exponent(arena, piece.body).guards;
    return std::any_of(guards.begin(), guards.end(),
                       [&](SymId guard) { return kind != ReduceKind::kMaximum || !summed_has(guard); });
  });
}

}  // namespace

bool subtracts_own_maximum(SymArena& arena, const Softmax& softmax) {
  if (softmax.subtracted.size() != 1 || !softmax.subtracted[0].negative) {
    return false;
  }
  // (x - m) c was rewritten to x c - m c.
  SymId factor = arena.f32(1.0f);
  SymId maximum = softmax.subtracted[0].term;
  if (arena.is_op(maximum, Op::k_mul)) {
    const std::vector<SymId> args = arena[maximum].args;
    const size_t side = arena.is_constant(args[0]) ? 0 : 1;
    if (!arena.is_constant(args[side]) || !(arena.f32_value(args[side]) > 0)) {
      return false;
    }
    factor = args[side];
    maximum = args[1 - side];
  }
  std::vector<ReducePiece> pieces;
  pieces_of_maximum(arena, maximum, pieces);
  bool found_keys = false;
  for (const ReducePiece& piece : pieces) {
    const Product logit = as_exponent(arena, arena.op(Op::k_mul, {piece.body, factor}));
    if (!logit.over.empty() || !logit.times.empty()) {
      return false;
    }
    if (piece.atom == kKeyAtom) {
      if (sorted(logit.guards) != sorted(softmax.guards) || sorted(logit.exponent) != sorted(softmax.key_terms)) {
        return false;
      }
      found_keys = true;
      continue;
    }
    const SymId sink = sum_of(arena, logit.exponent);
    bool is_summed = false;
    for (size_t i = 0; i < softmax.sinks.size(); ++i) {
      is_summed = is_summed || (softmax.sinks[i] == sink && softmax.sink_sizes[i] == piece.size &&
                                softmax.sink_atoms[i] == piece.atom);
    }
    if (!is_summed || !logit.guards.empty()) {
      return false;
    }
  }
  return found_keys;
}

bool may_be_no_number(SymArena& arena, SymId shift, const Softmax& softmax) {
  return any_part({shift}, [&](SymId id, std::vector<SymId>& next) {
    const Sym sym = arena[id];
    if (sym.type != Type::kF32) {
      return false;
    }
    if (sym.kind == SymKind::kConstant) {
      return !std::isfinite(arena.f32_value(id));
    }
    if (sym.kind == SymKind::kReduce) {
      return reduces_to_no_number(arena, id, softmax);
    }
    if (sym.kind != SymKind::kOp) {
      return true;
    }
    for (const SymId arg : sym.args) {
      const bool is_neutral = (sym.op == Op::k_max && arena.is_f32(arg, -kInfinity)) ||
                              (sym.op == Op::k_min && arena.is_f32(arg, kInfinity));
      if (!is_neutral) {
        next.push_back(arg);
      }
    }
    switch (sym.op) {
      case Op::k_log:  // must be of a sum of exponentials
        next.clear();
        return arena[sym.args[0]].kind != SymKind::kReduce || arena.reduce_kind(sym.args[0]) != ReduceKind::kAdd;
      case Op::k_div:
        return !arena.is_constant(sym.args[1]) || is_zero(arena, sym.args[1]);
      default:
        return !score::is_any(sym.op, {Op::k_add, Op::k_sub, Op::k_mul, Op::k_neg, Op::k_abs, Op::k_max, Op::k_min,
                                       Op::k_select, Op::k_exp, Op::k_exp2, Op::k_tanh, Op::k_sigmoid, Op::k_floor,
                                       Op::k_ceil, Op::k_round_even, Op::k_sign, Op::k_round_bf16, Op::k_round_f16});
    }
  });
}

std::optional<SymId> body_of_maximum(const SymArena& arena, const Softmax& softmax) {
  std::vector<ReducePiece> pieces;
  if (softmax.maximum != kNoSym) {
    const Sym& maximum = arena[softmax.maximum];
    const bool is_scaled = arena.is_op(softmax.maximum, Op::k_mul);
    pieces_of_maximum(arena, is_scaled ? maximum.args[arena.is_constant(maximum.args[0]) ? 1 : 0] : softmax.maximum,
                      pieces);
  }
  for (const ReducePiece& piece : pieces) {
    if (piece.atom == kKeyAtom) {
      return piece.body;
    }
  }
  return std::nullopt;
}

}  // namespace flashlift::stablehlo
