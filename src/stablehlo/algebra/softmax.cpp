#include "stablehlo/algebra/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "score/operation.h"

namespace flashlift::stablehlo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <typename T>
std::vector<T> sorted(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values;
}

bool depends_on_key(const SymArena& arena, SymId id) { return arena.depends_on(id, kKeyAtom); }

// The terms that make the score, and those computed from all scores of the row, which cancel. What depends on the row
// alone but not on its scores would cancel, too; it stays with the score, whose log-sum-exp holds it.
void partition(const SymArena& arena, const std::vector<SignedTerm>& terms, std::vector<SignedTerm>& of_key,
               std::vector<SignedTerm>& of_row) {
  for (const SignedTerm& term : terms) {
    const bool is_statistic = arena[term.term].has_score && !depends_on_key(arena, term.term);
    (is_statistic ? of_row : of_key).push_back(term);
  }
}

// The parts of a divisor: pieces of reductions, and what is added to them, which is a sink a piece. A number is a part
// where nothing is subtracted from the scores; where something is, it would be a sink of another logit in each row. One
// so small that it is lost beside 1 is no part: a guard of a sum that is at least 1.
Outcome<std::vector<ReducePiece>> parts_of_divisor(const SymArena& arena, SymId z, bool subtracts, bool& guarded) {
  constexpr float kLostBesideOne = 2.9e-8f;  // half an ulp below 1
  constexpr size_t kMostParts = 1024;
  std::vector<ReducePiece> parts;
  std::vector<SymId> stack{z};
  while (!stack.empty()) {
    if (parts.size() + stack.size() > kMostParts) {
      return refuse<Reason::kTooManyParts>(kMostParts);
    }
    const SymId id = stack.back();
    stack.pop_back();
    if (arena.is_op(id, Op::k_add)) {
      stack.insert(stack.end(), arena[id].args.begin(), arena[id].args.end());
    } else if (arena[id].kind == SymKind::kReduce && arena.reduce_kind(id) == ReduceKind::kAdd) {
      append(parts, arena.pieces(id));
    } else if (arena.is_constant(id)) {
      if (!subtracts && arena.f32_value(id) > 0) {
        parts.push_back({.body = id, .size = 1, .atom = -1});
      } else if (std::abs(arena.f32_value(id)) <= kLostBesideOne) {
        guarded = guarded || !is_zero(arena, id);
      } else {
        return refuse<Reason::kConstantInSum>();
      }
    } else {
      parts.push_back({.body = id, .size = 1, .atom = -1});
    }
  }
  return parts;
}

bool holds_row_sum(const SymArena& arena, SymId z) {
  return any_term(arena, z, {Op::k_add}, [&](SymId term) {
    return arena[term].kind == SymKind::kReduce && arena.reduce_kind(term) == ReduceKind::kAdd;
  });
}

// m where m is a number: m is finite ? m : 0, m == -inf ? 0 : m, -inf < m ? m : 0.
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

// What a maximum is the largest of. No number is below the lowest one.
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

// Whether all that is subtracted is the maximum of exactly what is summed: the same keys under the same conditions, and
// sinks that are summed too.
bool subtracts_own_maximum(SymArena& arena, const Softmax& softmax) {
  if (softmax.subtracted.size() != 1 || !softmax.subtracted[0].negative) {
    return false;
  }
  // (x - m) c has become x c - m c.
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

// Whether what all scores of a row are reduced to may be infinite or NaN where each of them is a number, or in a row
// that has keys: the lowest of masked scores, or the largest of fewer scores than are summed.
bool reduces_to_no_number(SymArena& arena, SymId reduction, const Softmax& softmax) {
  // Or reads, where the -inf of a masked score was multiplied or added to.
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

// Whether what is subtracted from a row may be infinite or NaN where its scores are numbers, overflow aside. It cancels
// only where it is a number.
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
      case Op::k_log:  // of a sum of exponentials
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

// The terms of a sum where conditions hold.
std::vector<SignedTerm> where(SymArena& arena, const std::vector<SignedTerm>& terms,
                              const std::vector<SymId>& conditions) {
  if (conditions.empty()) {
    return terms;
  }
  SymId sum = sum_of(arena, terms);
  for (const SymId condition : conditions) {
    sum = assume(arena, sum, condition);
  }
  return as_exponent(arena, sum).exponent;
}

// The conditions that may say which keys stay: those on the key, and with them those on the row that no scores decide,
// as a mask of queries and keys has them. Without one on the key these clear rows.
std::vector<SymId> masks_of_keys(const SymArena& arena, const std::vector<SymId>& guards) {
  std::vector<SymId> masks;
  bool any_of_key = false;
  for (const SymId guard : guards) {
    const SymId positive = arena.is_op(guard, Op::k_not) ? arena[guard].args[0] : guard;
    const bool is_of_key = depends_on_key(arena, guard);
    any_of_key = any_of_key || is_of_key;
    if (is_of_key || (!arena[guard].has_score && arena[positive].kind != SymKind::kReduce)) {
      masks.push_back(guard);
    }
  }
  return any_of_key ? masks : std::vector<SymId>();
}

Outcome<Softmax> match_denominator(SymArena& arena, const Product& numerator, SymId z) {
  Softmax softmax;
  softmax.denominator = z;
  std::vector<SignedTerm> of_key;
  std::vector<SignedTerm> of_row;
  partition(arena, numerator.exponent, of_key, of_row);
  const std::vector<SymId> masks = masks_of_keys(arena, numerator.guards);
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<ReducePiece> parts,
                             parts_of_divisor(arena, z, !of_row.empty(), softmax.needs_maximum));
  bool found_keys = false;
  for (const ReducePiece& piece : parts) {
    if (arena.is_constant(piece.body) && piece.size == 1 && arena.f32_value(piece.body) > 0 && of_row.empty()) {
      softmax.sinks.push_back(arena.f32(std::log(arena.f32_value(piece.body))));
      softmax.sink_sizes.push_back(1);
      softmax.sink_atoms.push_back(-1);
      continue;
    }
    const Product body = as_product(arena, piece.body);
    if (!body.over.empty() || !body.times.empty()) {
      return refuse<Reason::kOtherPartsInSum>();
    }
    append(softmax.apart, body.apart);
    if (piece.atom != kKeyAtom) {  // a sink: e^(logit - what is subtracted)
      std::vector<SignedTerm> logit = body.exponent;
      for (const SignedTerm& term : of_row) {
        const auto same = std::find(logit.begin(), logit.end(), term);
        if (same == logit.end()) {
          return refuse<Reason::kPartShifted>();
        }
        logit.erase(same);
      }
      if (!body.guards.empty()) {
        return refuse<Reason::kMaskedSinks>();
      }
      softmax.sinks.push_back(sum_of(arena, logit));
      softmax.sink_sizes.push_back(piece.size);
      softmax.sink_atoms.push_back(piece.atom);
      continue;
    }
    for (const SymId guard : masks) {
      if (std::find(body.guards.begin(), body.guards.end(), guard) == body.guards.end()) {
        if (arena[guard].has_score) {
          return refuse<Reason::kConditionOnScores>();
        }
        softmax.keep.push_back(guard);
        softmax.keep_selects = softmax.keep_selects || std::find(numerator.clears.begin(), numerator.clears.end(),
                                                                 guard) != numerator.clears.end();
      }
    }
    std::vector<SignedTerm> z_key;
    std::vector<SignedTerm> z_row;
    partition(arena, body.exponent, z_key, z_row);
    // Where conditions do not hold, both are 0, or the numerator alone is.
    std::vector<SymId> conditions = softmax.keep;
    append(conditions, body.guards);
    const bool are_equal = sorted(z_key) == sorted(of_key) ||
                           sorted(where(arena, z_key, conditions)) == sorted(where(arena, of_key, conditions));
    if (found_keys || z_key.empty() || !are_equal) {
      return refuse<Reason::kOtherExponentials>();
    }
    if (sorted(z_row) != sorted(of_row)) {
      return refuse<Reason::kSumShifted>();
    }
    for (const SymId guard : body.guards) {
      if (std::find(numerator.guards.begin(), numerator.guards.end(), guard) == numerator.guards.end()) {
        return refuse<Reason::kSumMasksMore>();
      }
    }
    softmax.guards = body.guards;
    softmax.score = sum_of(arena, z_key);
    softmax.key_terms = z_key;
    found_keys = true;
  }
  if (!found_keys) {
    return refuse<Reason::kNoKeySum>();
  }
  softmax.subtracted = of_row;
  if (subtracts_own_maximum(arena, softmax)) {
    softmax.maximum = of_row[0].term;
  } else if (std::any_of(of_row.begin(), of_row.end(),
                         [&](const SignedTerm& shift) { return may_be_no_number(arena, shift.term, softmax); })) {
    return refuse<Reason::kShiftNoNumber>();
  }
  return softmax;
}

// Whether a condition on the row says no more than "the row has a kept key". One on the row sum says so where the sum
// is at least 1; `needs_maximum` is set then. `clears_nan` is set where it does not hold for a row that is NaN.
bool says_not_empty(SymArena& arena, SymId condition, const Softmax& softmax, SymId whole_score, bool& needs_maximum,
                    bool& clears_nan) {
  const auto is_infinite_constant = [&](SymId id) { return arena.is_f32(id, -kInfinity); };
  const auto kept = [&](SymId body) {  // "this key is kept", for the key of a reduction's body
    if (arena.is_op(body, Op::k_ne) || (arena.is_op(body, Op::k_not) && arena.is_op(arena[body].args[0], Op::k_eq))) {
      const std::vector<SymId> args = arena[arena.is_op(body, Op::k_ne) ? body : arena[body].args[0]].args;
      const SymId other = is_infinite_constant(args[0]) ? args[1] : args[0];
      if (!is_infinite_constant(args[0]) && !is_infinite_constant(args[1])) {
        return false;
      }
      const Product product = as_exponent(arena, other);
      return sorted(product.guards) == sorted(softmax.guards) && sum_of(arena, product.exponent) == whole_score;
    }
    std::vector<SymId> guards;
    add_guard(arena, guards, body);
    return sorted(guards) == sorted(softmax.guards);
  };
  const auto is_row_maximum = [&](SymId id) {
    if (arena[id].kind != SymKind::kReduce || arena.reduce_kind(id) != ReduceKind::kMaximum) {
      return false;
    }
    const auto pieces = arena.pieces(id);
    const Product product = as_exponent(arena, pieces[0].body);
    return pieces.size() == 1 && sorted(product.guards) == sorted(softmax.guards) &&
           sum_of(arena, product.exponent) == whole_score;
  };
  if (arena[condition].kind == SymKind::kReduce && arena.reduce_kind(condition) == ReduceKind::kOr) {
    const auto pieces = arena.pieces(condition);
    return pieces.size() == 1 && pieces[0].atom == kKeyAtom && kept(pieces[0].body);
  }
  if (arena.is_op(condition, Op::k_not)) {
    const SymId inner = arena[condition].args[0];
    if (arena[inner].kind == SymKind::kReduce && arena.reduce_kind(inner) == ReduceKind::kAnd) {
      const auto pieces = arena.pieces(inner);
      return pieces.size() == 1 && pieces[0].atom == kKeyAtom && kept(arena.op(Op::k_not, {pieces[0].body}));
    }
    if (arena.is_op(inner, Op::k_eq)) {
      return says_not_empty(arena, arena.op(Op::k_ne, arena[inner].args), softmax, whole_score, needs_maximum,
                            clears_nan);
    }
    return false;
  }
  if (arena.is_op(condition, Op::k_is_finite)) {
    clears_nan = true;
    return is_row_maximum(arena[condition].args[0]);
  }
  for (const Op op : {Op::k_ne, Op::k_lt}) {  // -inf != max, -inf < max, 0 != z, 0 < z
    if (arena.is_op(condition, op)) {
      const std::vector<SymId>& args = arena[condition].args;
      for (int side = 0; side < (op == Op::k_ne ? 2 : 1); ++side) {
        if (is_infinite_constant(args[side]) && is_row_maximum(args[1 - side])) {
          clears_nan = clears_nan || op == Op::k_lt;
          return true;
        }
        if (is_zero(arena, args[side]) && args[1 - side] == softmax.denominator) {
          clears_nan = clears_nan || op == Op::k_lt;
          needs_maximum = true;
          return true;
        }
      }
    }
  }
  return false;
}

// Renormalised: (e / z) / sum of (e / z) is e / sum of e where z is itself the row sum of these exponentials, if under
// fewer conditions. Of any other z a row may be 0 / 0. A guard may have been of the second sum, which need not be 1 or
// more: then all stays.
void cancel_row_sum(SymArena& arena, Product& product) {
  if (product.has_guard) {
    return;
  }
  for (size_t i = 0; i < product.over.size(); ++i) {
    const SymId divisor = product.over[i];
    if (arena[divisor].kind != SymKind::kReduce || arena.reduce_kind(divisor) != ReduceKind::kAdd) {
      continue;
    }
    const std::vector<ReducePiece> pieces = arena.pieces(divisor);
    const Product body = as_product(arena, pieces[0].body);
    if (pieces.size() != 1 || pieces[0].atom != kKeyAtom || body.over.size() != 1 || !body.times.empty() ||
        body.has_guard) {
      continue;
    }
    const auto row_sum = std::find(product.over.begin(), product.over.end(), body.over[0]);
    if (row_sum == product.over.end() || !holds_row_sum(arena, *row_sum)) {
      continue;
    }
    const auto inner = match_denominator(arena, body, *row_sum);
    if (!inner.ok() || !inner->sinks.empty() || inner->needs_maximum) {
      continue;
    }
    SymId exponential = arena.op(Op::k_exp, {sum_of(arena, body.exponent)});
    for (const SymId guard : body.guards) {
      exponential = arena.op(Op::k_select, {guard, exponential, arena.f32(0.0f)});
    }
    product.over[i] = arena.reduce(ReduceKind::kAdd, {{.body = exponential, .size = pieces[0].size, .atom = kKeyAtom}});
    product.over.erase(row_sum);
    return;
  }
}

}  // namespace

Outcome<Softmax> match_softmax(SymArena& arena, const Product& whole) {
  Product product = whole;
  cancel_row_sum(arena, product);
  if (std::none_of(product.exponent.begin(), product.exponent.end(),
                   [&](const SignedTerm& term) { return arena[term.term].has_score; })) {
    return refuse<Reason::kNoExponential>();
  }
  float keep_factor = 1;
  bool is_scaled = false;  // by more than numbers
  for (const SymId factor : product.times) {
    if (depends_on_key(arena, factor)) {
      return refuse<Reason::kOwnWeights>();
    }
    if (arena.is_constant(factor)) {
      keep_factor *= arena.f32_value(factor);
    } else {
      is_scaled = true;
    }
  }
  std::vector<SymId> over;
  for (const SymId divisor : product.over) {
    if (depends_on_key(arena, divisor)) {
      return refuse<Reason::kDivisorOfKeys>();
    }
    if (arena.is_constant(divisor)) {
      keep_factor /= arena.f32_value(divisor);
    } else {
      over.push_back(divisor);
    }
  }
  Refusal refusal = refuse<Reason::kNotDivided>();
  for (const SymId z : over) {
    if (!holds_row_sum(arena, z)) {
      continue;
    }
    auto softmax = match_denominator(arena, product, z);
    if (!softmax.ok()) {
      refusal = softmax.error();
      continue;
    }
    softmax->keep_factor = keep_factor;
    if (over.size() > 1 || is_scaled || (softmax->keep.empty() && keep_factor != 1)) {
      return refuse<Reason::kScaledRows>();
    }
    if (!softmax->keep.empty() && !(keep_factor >= 1 && std::isfinite(keep_factor))) {
      return refuse<Reason::kKeepFactor>(keep_factor);
    }
    for (const SymId guard : product.guards) {
      const auto is_in = [&](const std::vector<SymId>& guards) {
        return std::find(guards.begin(), guards.end(), guard) != guards.end();
      };
      const bool known = is_in(softmax->guards) || is_in(softmax->keep);
      if (!known &&
          !says_not_empty(arena, guard, *softmax, softmax->score, softmax->needs_maximum, softmax->clears_nan)) {
        return refuse<Reason::kClearedRows>();
      }
    }
    softmax->needs_maximum = softmax->needs_maximum || product.has_guard;
    softmax->rounds_logarithm = product.rounds_logarithm;
    append(softmax->apart, product.apart);
    if (softmax->needs_maximum && softmax->maximum == kNoSym) {
      return refuse<Reason::kGuardMayAct>();
    }
    return softmax;
  }
  return refusal;
}

namespace {

// A product where conditions hold that only its numerator has. The scores may be masked by them, too: of exponents they
// are taken out where they make an exponential 0, and of sums nowhere.
class Undropped {
 public:
  Undropped(SymArena& arena, const std::vector<SymId>& conditions) : arena_(arena), conditions_(conditions) {}

  SymId product(SymId id) { return visit(id, false); }

 private:
  SymId visit(SymId id, bool in_exponent) {
    const auto key = std::pair(id, in_exponent);
    if (const auto found = known_.find(key); found != known_.end()) {
      return found->second;
    }
    const Sym sym = arena_[id];
    SymId result = id;
    if (sym.kind == SymKind::kOp && sym.type == Type::kF32) {
      std::vector<SymId> args;
      for (const SymId arg : sym.args) {
        args.push_back(visit(arg, in_exponent || sym.op == Op::k_exp));
      }
      const auto is_masked = [&](SymId arg) { return arena_.is_f32(arg, -kInfinity); };
      if (sym.op == Op::k_select && (!in_exponent || is_masked(args[1]) || is_masked(args[2]))) {
        for (const SymId condition : conditions_) {
          args[0] = assume(arena_, args[0], condition);
        }
      }
      result = args == sym.args ? id : arena_.op(sym.op, args);
    }
    known_.emplace(key, result);
    return result;
  }

  SymArena& arena_;
  const std::vector<SymId>& conditions_;
  std::map<std::pair<SymId, bool>, SymId> known_;
};

}  // namespace

SymId without_dropout(SymArena& arena, SymId probability, const Softmax& softmax) {
  if (softmax.keep.empty()) {
    return probability;
  }
  return arena.op(Op::k_div, {Undropped(arena, softmax.keep).product(probability), arena.f32(softmax.keep_factor)});
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

bool is_log_sum_exp(SymArena& arena, SymId formula, const Softmax& softmax) {
  const Product product = as_exponent(arena, formula);  // e^formula must be the sum of e^score
  if (!product.guards.empty() || !product.over.empty() || product.times.size() != 1) {
    return false;
  }
  const std::vector<SignedTerm> added = sorted(product.exponent);  // what was subtracted in the sum
  bool guarded = product.has_guard;
  const auto parts = parts_of_divisor(arena, product.times[0], !added.empty(), guarded);
  if (!parts.ok() || parts->size() != 1 + softmax.sinks.size()) {
    return false;
  }
  // A guard has no effect on a sum that is at least 1: `needs_maximum` says that the divisor has one, too, and that the
  // maximum was checked for it.
  if (guarded && (!softmax.needs_maximum || added.size() != 1 || added[0].term != softmax.maximum)) {
    return false;
  }
  const auto is_shifted = [&](std::vector<SignedTerm> terms) {
    for (SignedTerm& term : terms) {
      term.negative = !term.negative;
    }
    return sorted(terms) == added;
  };
  bool found_keys = false;
  std::vector<bool> found_sinks(softmax.sinks.size());
  for (const ReducePiece& piece : *parts) {
    const Product body = as_product(arena, piece.body);
    std::vector<SignedTerm> of_key;
    std::vector<SignedTerm> of_row;
    partition(arena, body.exponent, of_key, of_row);
    if (!body.over.empty() || !body.times.empty() || !is_shifted(of_row)) {
      return false;
    }
    const SymId logit = sum_of(arena, of_key);
    if (piece.atom == kKeyAtom) {
      if (found_keys || sorted(body.guards) != sorted(softmax.guards) || logit != softmax.score) {
        return false;
      }
      found_keys = true;
      continue;
    }
    size_t sink = 0;
    while (sink < softmax.sinks.size() &&
           (found_sinks[sink] || softmax.sinks[sink] != logit || softmax.sink_sizes[sink] != piece.size ||
            softmax.sink_atoms[sink] != piece.atom)) {
      ++sink;
    }
    if (sink == softmax.sinks.size() || !body.guards.empty()) {
      return false;
    }
    found_sinks[sink] = true;
  }
  return found_keys;
}

}  // namespace flashlift::stablehlo
