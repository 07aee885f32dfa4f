#include "stablehlo/algebra/numeric.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "score/derivative_rules.h"
#include "score/operation.h"
#include "stablehlo/algebra/product.h"

namespace flashlift::stablehlo {
namespace {

using score::Scalar;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// SplitMix64's finalizer: every bit of the result depends on every bit of the argument.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}
uint64_t mixed(uint64_t seed, uint64_t value) { return mixed(seed + 0x9e3779b97f4a7c15ULL * (value + 1)); }
double unit(uint64_t bits) { return static_cast<double>(bits >> 11U) * 0x1p-53; }  // in [0, 1)

Scalar<double> constant(const Sym& sym) {
  if (sym.type == Type::kF32) {
    return {.i = 0, .f = std::bit_cast<float>(static_cast<uint32_t>(sym.payload))};
  }
  return {.i = sym.payload, .f = 0};
}

bool is_maximum_of_scores(const SymArena& arena, SymId id) {
  return any_term(arena, id, {Op::k_max}, [&](SymId term) {  // possibly the larger of the maximum and -inf
    return arena[term].kind == SymKind::kReduce && arena.reduce_kind(term) == ReduceKind::kMaximum;
  });
}

// Whether this is the row maximum, and the other number is one that it may equal in any row, or an infinity: a score
// that it is the maximum of, or a term of the larger of both.
bool is_maximum_beside(const SymArena& arena, SymId maximum, SymId other) {
  const bool is_infinite = arena.is_constant(other) && std::isinf(arena.f32_value(other));
  return is_maximum_of_scores(arena, maximum) &&
         (is_infinite || any_part({maximum}, [&](SymId id, std::vector<SymId>& next) {
            if (arena.is_op(id, Op::k_max)) {
              arena.push_args(id, next);
            } else if (arena[id].kind == SymKind::kReduce && arena.reduce_kind(id) == ReduceKind::kMaximum) {
              return std::ranges::any_of(arena.pieces(id),
                                         [&](const ReducePiece& piece) { return piece.body == other; });
            }
            return id == other;
          }));
}

// Whether the formula is a sum of exponentials, which is positive in each row with keys.
bool is_positive(const SymArena& arena, SymId formula) {
  return !any_part({formula}, [&](SymId id, std::vector<SymId>& next) {
    const Sym& sym = arena[id];
    const bool is_op = sym.kind == SymKind::kOp;
    if (arena.is_op(id, Op::k_exp) || arena.is_op(id, Op::k_exp2) ||
        (arena.is_constant(id) && sym.type == Type::kF32 && arena.f32_value(id) >= 0)) {
      return false;
    }
    const bool is_select = arena.is_op(id, Op::k_select);
    if (!is_select && !(sym.kind == SymKind::kReduce && arena.reduce_kind(id) == ReduceKind::kAdd) &&
        !(is_op && (sym.op == Op::k_add || sym.op == Op::k_mul || sym.op == Op::k_div))) {
      return true;
    }
    next.insert(next.end(), sym.args.begin() + (is_select ? 1 : 0), sym.args.end());
    return false;
  });
}

std::vector<SymId> children(const SymArena& arena, SymId id) {
  if (arena[id].kind != SymKind::kReduce) {
    return arena[id].args;
  }
  std::vector<SymId> bodies;
  for (const ReducePiece& piece : arena.pieces(id)) {
    bodies.push_back(piece.body);
  }
  return bodies;
}

void collect(const SymArena& arena, SymId formula, std::set<SymId>& into) {
  any_part({formula}, [&](SymId id, std::vector<SymId>& next) {
    if (into.insert(id).second) {
      const std::vector<SymId> below = children(arena, id);
      next.insert(next.end(), below.begin(), below.end());
    }
    return false;
  });
}

// Whether the operation is smooth: it neither branches nor has a step. A select counts as smooth, because its condition
// is checked separately.
bool is_smooth(const Sym& sym) {
  if (sym.op == Op::k_select) {
    return true;
  }
  return sym.type == Type::kI1 ? info(sym.op).rule == TypeRule::kBits
                               : sym.type == Type::kF32 && score::is_smooth(score::operation(sym.op).shape);
}

// Whether the formula is a step (whose derivative is 0) or a function with kinks, computed from positions and integers
// alone. Smooth functions of these do not count. Nor does a select: dropout's factor must follow its condition.
bool is_of_positions(const SymArena& arena, SymId formula) {
  const Sym& top = arena[formula];
  if (top.kind != SymKind::kOp || top.type != Type::kF32 || top.has_score) {
    return false;
  }
  const bool steps = score::is_any(top.op, {Op::k_floor, Op::k_ceil, Op::k_round_even, Op::k_sign, Op::k_to_f32});
  if (!steps && !score::is_any(top.op, {Op::k_max, Op::k_min, Op::k_abs})) {
    return false;
  }
  std::set<SymId> parts;
  collect(arena, formula, parts);
  return std::all_of(parts.begin(), parts.end(), [&](SymId id) {
    const Sym& sym = arena[id];
    return sym.kind != SymKind::kReduce && (steps || sym.kind != SymKind::kLoad || sym.type != Type::kF32);
  });
}

bool is_comparison(Op op) { return info(op).rule == TypeRule::kCompare || info(op).rule == TypeRule::kCompareAny; }

}  // namespace

std::set<SymId> parts_of(const SymArena& arena, const std::vector<SymId>& formulas) {
  std::set<SymId> parts;
  for (const SymId id : formulas) {
    collect(arena, id, parts);
  }
  return parts;
}

const std::vector<Scalar<double>>& NumericRow::values(SymId id) {
  if (const auto found = memo_.find(id); found != memo_.end()) {
    return found->second;
  }
  std::vector<Scalar<double>> column = compute(id);
  meet(id, column);
  return memo_.emplace(id, std::move(column)).first->second;
}

// Sets what the draw's conditions require of the formula.
void NumericRow::meet(SymId id, std::vector<Scalar<double>>& column) {
  for (const Met& met : draw_.met) {
    if (id != (met.number == kNoSym ? met.condition : met.number)) {
      continue;
    }
    for (size_t key = 0; key < column.size(); ++key) {
      if (column.size() > 1 && !draw_.met_by_all && mixed(draw_.seed, key) % 2 != 0) {
        continue;  // the same keys for all conditions
      }
      if (met.number == kNoSym) {
        column[key].i = static_cast<int64_t>(met.holds);
      } else if (const double bound = at(met.bound, key).f; std::isfinite(bound)) {
        column[key].f = bound + met.distance * std::max(1.0, std::abs(bound));
      }
    }
  }
}

std::vector<Scalar<double>> NumericRow::compute(SymId id) {
  const Sym& sym = arena_[id];
  const size_t count = arena_.depends_on(id, kKeyAtom) ? static_cast<size_t>(sizes_[kKeyAtom]) : 1;
  std::vector<Scalar<double>> column(count);
  for (const auto& [condition, holds] : draw_.conditions) {
    if (id == condition) {
      column.assign(count, Scalar<double>{.i = holds ? 1 : 0});
      return column;
    }
  }
  if (draw_.draws_positions && is_of_positions(arena_, id)) {
    for (size_t key = 0; key < count; ++key) {
      column[key] = drawn_position(id, key);
    }
    return column;
  }
  if (id == draw_.drawn) {
    uint64_t row = mixed(draw_.seed, static_cast<uint64_t>(id));
    for (int atom = 0; atom < kFirstBound; ++atom) {
      row = mixed(row, atom != kKeyAtom ? static_cast<uint64_t>(atoms_[static_cast<size_t>(atom)]) : 0);
    }
    return drawn_scores(row, count, 1);
  }
  switch (sym.kind) {
    case SymKind::kConstant:
      return {constant(sym)};
    case SymKind::kAtom:
      for (size_t key = 0; key < count; ++key) {
        column[key].i = sym.payload == kKeyAtom ? static_cast<int64_t>(key) : atoms_[static_cast<size_t>(sym.payload)];
      }
      return column;
    case SymKind::kScore: {
      uint64_t row = draw_.seed;
      for (int atom = 0; atom < kFirstBound; ++atom) {
        row = mixed(row, (sym.atoms & atom_bit(atom)) != 0 && atom != kKeyAtom
                             ? static_cast<uint64_t>(atoms_[static_cast<size_t>(atom)])
                             : 0);
      }
      column = drawn_scores(row, count, draw_.score_scale);
      for (size_t key = 0; key < std::min(count, draw_.key_scores.size()); ++key) {
        column[key].f = column[key].f / draw_.key_scores[key].scale + draw_.key_scores[key].offset;
      }
      return column;
    }
    case SymKind::kLoad:
      for (size_t key = 0; key < count; ++key) {
        column[key] = load(sym, key);
      }
      return column;
    case SymKind::kReduce:
      return reduce(id);
    case SymKind::kOp:
      break;
  }
  if (sym.op == Op::k_round_bf16 || sym.op == Op::k_round_f16) {
    return values(sym.args[0]);  // formulas are compared without rounding
  }
  const Type operand_type = arena_[sym.args.back()].type;
  // Looks each operand up once, since that takes longer than most operations. The map's elements do not move.
  std::vector<const std::vector<Scalar<double>>*> operands;
  for (const SymId arg : sym.args) {
    operands.push_back(&values(arg));
  }
  std::vector<Scalar<double>> args(sym.args.size());
  for (size_t key = 0; key < count; ++key) {
    for (size_t i = 0; i < args.size(); ++i) {
      args[i] = (*operands[i])[operands[i]->size() == 1 ? 0 : key];
    }
    column[key] = score::apply<double>(sym.op, sym.type, operand_type, args);
  }
  return column;
}

std::vector<Scalar<double>> NumericRow::drawn_scores(uint64_t row, size_t count, double scale) const {
  std::vector<Scalar<double>> scores(count);
  for (size_t key = 0; key < count; ++key) {
    const bool is_zero = draw_.zero_scores && mixed(mixed(row, key)) % 2 == 0;
    scores[key].f = is_zero ? 0 : (draw_.score_center + draw_.score_range * (2 * unit(mixed(row, key)) - 1)) / scale;
  }
  return scores;
}

Scalar<double> NumericRow::drawn_position(SymId id, size_t key) const {
  uint64_t bits = mixed(draw_.seed, static_cast<uint64_t>(id));
  for (int atom = 0; atom < kMaxAtoms; ++atom) {
    if (arena_.depends_on(id, atom)) {
      bits = mixed(bits, atom == kKeyAtom ? key : static_cast<uint64_t>(atoms_[static_cast<size_t>(atom)]));
    }
  }
  return {.i = 0, .f = draw_.load_center + draw_.load_range * (2 * unit(bits) - 1)};
}

Scalar<double> NumericRow::load(const Sym& sym, size_t key) {
  uint64_t bits = mixed(draw_.seed, static_cast<uint64_t>(sym.payload));
  for (const SymId index : sym.args) {
    bits = mixed(bits, static_cast<uint64_t>(at(index, key).i));
  }
  if (sym.payload == kShift) {
    return {.i = 0, .f = 0};
  }
  if (sym.payload == draw_.gradient) {
    return {.i = 0, .f = draw_.gradient_range * (2 * unit(bits) - 1)};
  }
  switch (sym.type) {
    case Type::kF32:
      return {.i = 0, .f = draw_.load_center + draw_.load_range * (2 * unit(bits) - 1)};
    case Type::kI1:
      return {.i = unit(bits) < 0.75 ? 1 : 0, .f = 0};
    case Type::kI32:
    case Type::kI64:
      return {.i = static_cast<int64_t>(bits % static_cast<uint64_t>(draw_.integer_range)), .f = 0};
  }
  return {};
}

std::vector<Scalar<double>> NumericRow::reduce(SymId id) {
  const ReduceKind kind = arena_.reduce_kind(id);
  Scalar<double> total{.i = kind == ReduceKind::kAnd ? 1 : 0,
                       .f = kind == ReduceKind::kMaximum   ? -kInfinity
                            : kind == ReduceKind::kMinimum ? kInfinity
                                                           : 0};
  const auto add = [&](const Scalar<double>& x) {
    switch (kind) {
      case ReduceKind::kAdd:
        total.f += x.f;
        total.i += x.i;
        break;
      case ReduceKind::kMaximum:
        total.f = std::isnan(x.f) || x.f > total.f ? x.f : total.f;
        break;
      case ReduceKind::kMinimum:
        total.f = std::isnan(x.f) || x.f < total.f ? x.f : total.f;
        break;
      case ReduceKind::kAnd:
        total.i &= x.i;
        break;
      case ReduceKind::kOr:
        total.i |= x.i;
        break;
    }
  };
  for (const ReducePiece& piece : arena_.pieces(id)) {
    if (piece.atom == kKeyAtom) {
      for (size_t key = 0; key < static_cast<size_t>(piece.size); ++key) {
        add(at(piece.body, key));
      }
      continue;
    }
    for (int64_t i = 0; i < piece.size; ++i) {
      NumericRow inner(arena_, sizes_, atoms_, draw_);
      if (piece.atom >= 0) {
        inner.atoms_[static_cast<size_t>(piece.atom)] = i;
      }
      add(inner.at(piece.body, 0));
    }
  }
  return {total};
}

double NumericRow::derivative(SymId id, size_t key) {
  const std::vector<double>& column = derivatives(id);
  return column[column.size() == 1 ? 0 : key];
}

const std::vector<double>& NumericRow::derivatives(SymId id) {
  if (const auto found = derivatives_.find(id); found != derivatives_.end()) {
    return found->second;
  }
  const Sym& sym = arena_[id];
  std::vector<double> column = {sym.kind == SymKind::kLoad && sym.payload == kShift ? 1.0 : 0.0};
  const bool may_depend = sym.kind != SymKind::kLoad && sym.type == Type::kF32;
  if (may_depend && std::any_of(sym.args.begin(), sym.args.end(), [&](SymId arg) {
        const std::vector<double>& slopes = derivatives(arg);
        return slopes.size() != 1 || slopes[0] != 0;
      })) {
    column.assign(arena_.depends_on(id, kKeyAtom) ? static_cast<size_t>(sizes_[kKeyAtom]) : 1,
                  std::numeric_limits<double>::quiet_NaN());
    std::vector<const std::vector<Scalar<double>>*> operands;
    std::vector<const std::vector<double>*> operand_slopes;
    for (const SymId arg : sym.args) {
      operands.push_back(&values(arg));
      operand_slopes.push_back(&derivatives(arg));
    }
    const std::vector<Scalar<double>>& results = values(id);
    std::vector<double> args(sym.args.size());
    std::vector<double> slopes(sym.args.size());
    const auto at_key = [](const auto& of, size_t key) { return of[of.size() == 1 ? 0 : key]; };
    for (size_t key = 0; key < column.size() && sym.kind != SymKind::kReduce; ++key) {
      for (size_t i = 0; i < args.size(); ++i) {
        const Scalar<double> arg = at_key(*operands[i], key);
        args[i] = sym.op == Op::k_select && i == 0 ? static_cast<double>(arg.i) : arg.f;
        slopes[i] = at_key(*operand_slopes[i], key);
      }
      column[key] = derivative_of_operation(sym, at_key(results, key).f, args, slopes);
    }
  }
  return derivatives_.emplace(id, std::move(column)).first->second;
}

// Applies the chain rule. A slope of 0 stays 0, also if it is multiplied by infinity.
double NumericRow::derivative_of_operation(const Sym& sym, double value, const std::vector<double>& args,
                                           const std::vector<double>& slopes) const {
  if (sym.op == Op::k_select) {
    return args[0] != 0 ? slopes[1] : slopes[2];
  }
  const double y = args.size() > 1 ? args[1] : 0;
  double sum = 0;
  for (size_t i = 0; i < args.size(); ++i) {
    if (slopes[i] != 0) {
      const score::NumberGradients gradients = score::number_gradients(sym.op, args[0], y, value, slopes[i]);
      sum += i == 0 ? gradients.to_x : gradients.to_y;
    }
  }
  return sum;
}

namespace {

// Whether a number of the row contains the logarithm of a sum.
bool is_logarithm(const SymArena& arena, SymId id) {
  return arena[id].has_score && any_part({id}, [&](SymId part, std::vector<SymId>& next) {
           if (arena[part].kind == SymKind::kOp) {
             arena.push_args(part, next);
           }
           return arena.is_op(part, Op::k_log) || arena.is_op(part, Op::k_log1p);
         });
}

// Returns x for x == inf ? 0 : x.
SymId without_plus_infinity(const SymArena& arena, SymId id) {
  if (!arena.is_op(id, Op::k_select)) {
    return id;
  }
  const std::vector<SymId>& args = arena[id].args;
  const bool replaces = arena.is_constant(args[1]) && compared_with_infinity(arena, args[0]) == args[2];
  return replaces ? args[2] : id;
}

}  // namespace

SymId compared_with_infinity(const SymArena& arena, SymId condition) {
  if (!arena.is_op(condition, Op::k_eq)) {
    return kNoSym;
  }
  const std::vector<SymId>& args = arena[condition].args;
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const bool is_first = arena.is_f32(args[0], kInfinite);
  const SymId number = is_first ? args[1] : args[0];
  return is_first != arena.is_f32(args[1], kInfinite) && !arena.depends_on(number, kKeyAtom) ? number : kNoSym;
}

bool reads_within(const SymArena& arena, SymId formula, const std::vector<SymId>& known,
                  const std::vector<SymId>& sinks) {
  std::set<SymId> allowed;
  for (const SymId id : known) {
    collect(arena, id, allowed);
  }
  // The comparisons that the known formulas contain implicitly: max(x, y) compares x with y, |x| compares x with 0.
  std::set<std::pair<SymId, SymId>> branches;
  for (const SymId id : allowed) {
    const Sym& sym = arena[id];
    if (arena.is_op(id, Op::k_abs)) {
      branches.emplace(sym.args[0], kNoSym);
    } else if ((arena.is_op(id, Op::k_max) || arena.is_op(id, Op::k_min)) && sym.type == Type::kF32) {
      const std::array<SymId, 3> parts = {sym.args[0], sym.args[1], id};
      for (const SymId x : parts) {
        for (const SymId y : parts) {
          branches.emplace(x, y);
        }
      }
    }
  }
  std::set<SymId> mine;
  collect(arena, formula, mine);
  const auto is_allowed = [&](SymId id) {
    return allowed.contains(id) || (arena.is_op(id, Op::k_not) && allowed.contains(arena[id].args[0]));
  };
  const std::vector<SymId> parts(mine.begin(), mine.end());
  return std::all_of(parts.begin(), parts.end(), [&](SymId id) {
    const Sym& sym = arena[id];
    if (sym.kind == SymKind::kLoad) {
      return is_allowed(id);
    }
    if (sym.kind == SymKind::kReduce) {
      return arena.reduce_kind(id) == ReduceKind::kAdd || is_allowed(id);
    }
    if (sym.kind != SymKind::kOp || is_smooth(sym) || is_allowed(id)) {
      return true;
    }
    if (sym.op == Op::k_is_finite) {
      return is_maximum_of_scores(arena, sym.args[0]);
    }
    if (sym.args.size() != 2 || !is_comparison(sym.op)) {
      return (sym.op == Op::k_sign || sym.op == Op::k_abs) &&
             (is_positive(arena, sym.args[0]) || branches.contains({sym.args[0], kNoSym}));
    }
    if (const SymId number = compared_with_infinity(arena, id);
        number != kNoSym && is_allowed(number) &&
        (is_logarithm(arena, number) || std::find(sinks.begin(), sinks.end(), number) != sinks.end())) {
      return true;
    }
    const auto [x, y] = std::minmax(sym.args[0], sym.args[1]);
    if (branches.contains({x, y})) {
      return true;
    }
    for (const auto& [one, other] : {std::pair(x, y), std::pair(y, x)}) {
      const bool is_zero = arena.is_f32(one, 0.0F) || arena.is_f32(one, -0.0F);
      if (is_zero && (is_positive(arena, other) || branches.contains({other, kNoSym}))) {
        return true;
      }
    }
    return (sym.op == Op::k_eq || sym.op == Op::k_ne) &&
           (is_maximum_beside(arena, x, y) || is_maximum_beside(arena, y, x));
  });
}

std::vector<SymId> conditions_of(const SymArena& arena, const std::vector<SymId>& formulas) {
  std::vector<SymId> conditions;
  for (const SymId id : parts_of(arena, formulas)) {
    const Sym& sym = arena[id];
    if (sym.type != Type::kI1 || sym.kind != SymKind::kOp || (!is_comparison(sym.op) && sym.op != Op::k_is_finite)) {
      continue;
    }
    std::set<SymId> within;
    collect(arena, id, within);
    if (std::none_of(within.begin(), within.end(), [&](SymId part) { return arena[part].kind == SymKind::kReduce; })) {
      conditions.push_back(id);
    }
  }
  return conditions;
}

namespace {

// Whether the operation is not a rational function of its operands. Such functions may change where no draw reaches.
bool is_transcendental(const Sym& sym) {
  return sym.kind == SymKind::kOp && info(sym.op).rule == TypeRule::kFloat &&
         score::is_smooth(score::operation(sym.op).shape) &&
         !score::is_any(sym.op, {Op::k_round_bf16, Op::k_round_f16});
}

bool is_minus_square(const SymArena& arena, SymId id, const std::set<SymId>& of) {
  const Sym& sym = arena[id];
  if (arena.is_op(id, Op::k_neg)) {
    const Sym& square = arena[sym.args[0]];
    return arena.is_op(sym.args[0], Op::k_mul) && square.args[0] == square.args[1] && of.contains(square.args[0]);
  }
  if (!arena.is_op(id, Op::k_mul)) {
    return false;
  }
  const auto negates = [&](SymId x, SymId y) {
    return arena.is_op(x, Op::k_neg) && arena[x].args[0] == y && of.contains(y);
  };
  return negates(sym.args[0], sym.args[1]) || negates(sym.args[1], sym.args[0]);
}

}  // namespace

namespace {

// Whether this is the row maximum of known scores, which a softmax subtracts so that its exponentials are at most 1.
// JAX's logsumexp replaces a maximum that is not finite by 0.
bool is_known_maximum(const SymArena& arena, SymId id, const std::set<SymId>& known) {
  const Sym& sym = arena[id];
  if (arena.is_op(id, Op::k_select)) {
    const Sym& condition = arena[sym.args[0]];
    return arena.is_op(sym.args[0], Op::k_is_finite) && condition.args[0] == sym.args[1] &&
           arena.is_constant(sym.args[2]) && is_known_maximum(arena, sym.args[1], known);
  }
  if (sym.kind != SymKind::kReduce || arena.reduce_kind(id) != ReduceKind::kMaximum) {
    return false;
  }
  const std::vector<SymId> scores = children(arena, id);
  return std::all_of(scores.begin(), scores.end(), [&](SymId score) { return known.contains(score); });
}

}  // namespace

bool computes_within(SymArena& arena, SymId formula, const std::vector<SymId>& known) {
  std::set<SymId> allowed;
  for (const SymId id : known) {
    collect(arena, id, allowed);
  }
  std::set<SymId> mine;
  collect(arena, formula, mine);
  std::vector<SymId> others;
  for (const SymId id : mine) {
    if (is_transcendental(arena[id]) && !allowed.contains(id)) {
      others.push_back(id);
    }
  }
  if (others.empty()) {
    return true;
  }
  std::set<SymId> arguments;  // of the functions that the known formulas apply
  std::set<SymId> terms = allowed;
  const std::vector<SymId> parts(allowed.begin(), allowed.end());
  for (const SymId id : parts) {
    const bool clips = (arena.is_op(id, Op::k_max) || arena.is_op(id, Op::k_min)) && arena[id].type == Type::kF32;
    if (clips &&
        arena.is_constant(arena[id].args[1])) {  // erf may be written as a rational function of a clipped number
      arguments.insert(arena[id].args[0]);
    }
    if (!is_transcendental(arena[id])) {
      continue;
    }
    const SymId argument = arena[id].args[0];
    arguments.insert(argument);
    if (arena.is_op(id, Op::k_exp)) {
      for (const SignedTerm& term : as_exponent(arena, argument).exponent) {
        terms.insert(term.term);
      }
    }
  }
  return std::all_of(others.begin(), others.end(), [&](SymId id) {
    const SymId argument = arena[id].args[0];
    if (arguments.contains(argument)) {
      return arena[id].args.size() == 1 || arena.is_constant(arena[id].args[1]);
    }
    if (arena.is_op(id, Op::k_log)) {
      return arena[argument].kind == SymKind::kReduce || allowed.contains(argument) ||
             (arena.is_op(argument, Op::k_abs) && arena[arena[argument].args[0]].kind == SymKind::kReduce);
    }
    if (!arena.is_op(id, Op::k_exp)) {
      return false;
    }
    const Product exponent = as_exponent(arena, argument);
    return is_minus_square(arena, argument, arguments) ||
           std::all_of(exponent.exponent.begin(), exponent.exponent.end(), [&](const SignedTerm& term) {
             const SymId number = without_plus_infinity(arena, term.term);
             return terms.contains(number) || is_known_maximum(arena, number, allowed);
           });
  });
}

bool rounds_within(const SymArena& arena, SymId formula, const std::vector<SymId>& known) {
  std::set<SymId> allowed;
  for (const SymId id : known) {
    collect(arena, id, allowed);
  }
  std::set<SymId> mine;
  collect(arena, formula, mine);
  return std::all_of(mine.begin(), mine.end(), [&](SymId id) {
    return (!arena.is_op(id, Op::k_round_bf16) && !arena.is_op(id, Op::k_round_f16)) || allowed.contains(id);
  });
}

std::optional<double> largest_threshold(const SymArena& arena, const std::vector<SymId>& formulas) {
  constexpr double kInfiniteClip = 1e10;  // beyond, doubles of the drawn scores are too coarse for their exponentials
  std::optional<double> largest;
  for (const SymId id : parts_of(arena, formulas)) {
    const Sym& sym = arena[id];
    const bool branches = sym.kind == SymKind::kOp &&
                          (is_comparison(sym.op) || sym.op == Op::k_max || sym.op == Op::k_min || sym.op == Op::k_abs);
    if (!branches || arena[sym.args[0]].type != Type::kF32 || is_maximum_of_scores(arena, id) ||
        std::any_of(sym.args.begin(), sym.args.end(), [&](SymId arg) { return is_maximum_of_scores(arena, arg); })) {
      continue;
    }
    largest = largest.value_or(0);
    const double infinite = sym.op == Op::k_max || sym.op == Op::k_min ? kInfiniteClip : kInfiniteNumber;
    for (const SymId arg : sym.args) {
      if (arena.is_constant(arg) && std::abs(arena.f32_value(arg)) < infinite) {
        largest = std::max<double>(*largest, std::abs(arena.f32_value(arg)));
      }
    }
  }
  return largest;
}

}  // namespace flashlift::stablehlo
