#include "stablehlo/algebra/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "stablehlo/algebra/denominator.h"
#include "stablehlo/algebra/lists.h"

namespace flashlift::stablehlo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

bool is_minus_infinity(const SymArena& arena, SymId id) { return arena.is_f32(id, -kInfinity); }

// Whether a product's exponential is that of the scores.
bool is_exponential_of_scores(SymArena& arena, const Product& product, const Softmax& softmax) {
  return sorted(product.guards) == sorted(softmax.guards) && sum_of(arena, product.exponent) == softmax.score;
}

// Whether a formula of a key is the condition that the key is kept.
bool is_kept(SymArena& arena, SymId formula, const Softmax& softmax) {
  const bool is_not_equal = arena.is_op(formula, Op::k_ne);
  if (is_not_equal || (arena.is_op(formula, Op::k_not) && arena.is_op(arena[formula].args[0], Op::k_eq))) {
    const std::vector<SymId> args = arena[is_not_equal ? formula : arena[formula].args[0]].args;
    if (!is_minus_infinity(arena, args[0]) && !is_minus_infinity(arena, args[1])) {
      return false;
    }
    const SymId other = is_minus_infinity(arena, args[0]) ? args[1] : args[0];
    return is_exponential_of_scores(arena, as_exponent(arena, other), softmax);
  }
  std::vector<SymId> guards;
  add_guard(arena, guards, formula);
  return sorted(guards) == sorted(softmax.guards);
}

bool is_row_maximum(SymArena& arena, SymId id, const Softmax& softmax) {
  if (arena[id].kind != SymKind::kReduce || arena.reduce_kind(id) != ReduceKind::kMaximum) {
    return false;
  }
  const std::vector<ReducePiece> pieces = arena.pieces(id);
  return pieces.size() == 1 && is_exponential_of_scores(arena, as_exponent(arena, pieces[0].body), softmax);
}

// The single reduction of this kind over the keys that the formula is. Its body, or nothing.
std::optional<SymId> body_over_keys(const SymArena& arena, SymId id, ReduceKind kind) {
  if (arena[id].kind != SymKind::kReduce || arena.reduce_kind(id) != kind) {
    return std::nullopt;
  }
  const std::vector<ReducePiece> pieces = arena.pieces(id);
  return pieces.size() == 1 && pieces[0].atom == kKeyAtom ? std::optional(pieces[0].body) : std::nullopt;
}

// Whether a condition on the row is equivalent to "the row has a kept key". A comparison with the row sum is, if the
// sum is at least 1; this sets `needs_maximum`. Sets `clears_nan` if the condition fails for a row that is NaN.
bool means_not_empty(SymArena& arena, SymId condition, Softmax& softmax) {
  if (const auto body = body_over_keys(arena, condition, ReduceKind::kOr)) {
    return is_kept(arena, *body, softmax);
  }
  if (arena.is_op(condition, Op::k_not)) {
    const SymId inner = arena[condition].args[0];
    if (const auto body = body_over_keys(arena, inner, ReduceKind::kAnd)) {
      return is_kept(arena, arena.op(Op::k_not, {*body}), softmax);
    }
    return arena.is_op(inner, Op::k_eq) && means_not_empty(arena, arena.op(Op::k_ne, arena[inner].args), softmax);
  }
  if (arena.is_op(condition, Op::k_is_finite)) {
    softmax.clears_nan = true;
    return is_row_maximum(arena, arena[condition].args[0], softmax);
  }
  const bool is_less = arena.is_op(condition, Op::k_lt);
  if (!is_less && !arena.is_op(condition, Op::k_ne)) {
    return false;
  }
  const std::vector<SymId> args = arena[condition].args;
  for (size_t side = 0; side < (is_less ? 1 : 2); ++side) {  // -inf != max, -inf < max, 0 != z, 0 < z
    const SymId other = args[1 - side];
    const bool is_of_sum = is_zero(arena, args[side]) && other == softmax.denominator;
    if (is_of_sum || (is_minus_infinity(arena, args[side]) && is_row_maximum(arena, other, softmax))) {
      softmax.clears_nan = softmax.clears_nan || is_less;
      softmax.needs_maximum = softmax.needs_maximum || is_of_sum;
      return true;
    }
  }
  return false;
}

// Simplifies renormalised probabilities, (e / z) / sum of (e / z), to e / sum of e. This requires that z is the row sum
// of these exponentials, possibly under fewer conditions; with any other z a row may be 0 / 0. Leaves the product
// unchanged if it had a guard, which may have been one of the second sum: that sum is not always at least 1.
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

// What multiplies and divides the exponential.
struct Factors {
  float constant = 1;
  bool has_row_factor = false;
  std::vector<SymId> over;
};

// Whether a divisor sums exponentials that are multiplied by this factor.
bool is_in_row_sum(SymArena& arena, const Product& product, SymId factor) {
  return std::any_of(product.over.begin(), product.over.end(), [&](SymId divisor) {
    return any_term(arena, divisor, {Op::k_add}, [&](SymId term) {
      if (arena[term].kind != SymKind::kReduce || arena.reduce_kind(term) != ReduceKind::kAdd) {
        return false;
      }
      const std::vector<ReducePiece> pieces = arena.pieces(term);
      return std::any_of(pieces.begin(), pieces.end(), [&](const ReducePiece& piece) {
        const std::vector<SymId> times = as_product(arena, piece.body).times;
        return std::find(times.begin(), times.end(), factor) != times.end();
      });
    });
  });
}

Outcome<Factors> read_factors(SymArena& arena, const Product& product) {
  Factors factors;
  for (const SymId factor : product.times) {
    if (arena.depends_on(factor, kKeyAtom)) {
      return is_in_row_sum(arena, product, factor) ? refuse<Reason::kOwnWeightsInSum>() : refuse<Reason::kOwnWeights>();
    }
    if (arena.is_constant(factor)) {
      factors.constant *= arena.f32_value(factor);
    } else {
      factors.has_row_factor = true;
    }
  }
  for (const SymId divisor : product.over) {
    if (arena.depends_on(divisor, kKeyAtom)) {
      return refuse<Reason::kDivisorOfKeys>();
    }
    if (arena.is_constant(divisor)) {
      factors.constant /= arena.f32_value(divisor);
    } else {
      factors.over.push_back(divisor);
    }
  }
  return factors;
}

// Adds what the numerator has beside the exponential to a softmax that was matched with its divisor.
Proof read_numerator(SymArena& arena, const Product& product, const Factors& factors, Softmax& softmax) {
  softmax.keep_factor = factors.constant;
  if (factors.over.size() > 1 || factors.has_row_factor || (softmax.keep.empty() && softmax.keep_factor != 1)) {
    return refuse<Reason::kScaledRows>();
  }
  if (!softmax.keep.empty() && !(softmax.keep_factor >= 1 && std::isfinite(softmax.keep_factor))) {
    return refuse<Reason::kKeepFactor>(softmax.keep_factor);
  }
  for (const SymId guard : product.guards) {
    const auto is_in = [&](const std::vector<SymId>& guards) {
      return std::find(guards.begin(), guards.end(), guard) != guards.end();
    };
    if (!is_in(softmax.guards) && !is_in(softmax.keep) && !means_not_empty(arena, guard, softmax)) {
      return refuse<Reason::kClearedRows>();
    }
  }
  softmax.needs_maximum = softmax.needs_maximum || product.has_guard;
  softmax.rounds_logarithm = product.rounds_logarithm;
  append(softmax.apart, product.apart);
  if (softmax.needs_maximum && softmax.maximum == kNoSym) {
    return refuse<Reason::kGuardMayAct>();
  }
  return {};
}

}  // namespace

Outcome<Softmax> match_softmax(SymArena& arena, const Product& whole) {
  Product product = whole;
  cancel_row_sum(arena, product);
  if (std::none_of(product.exponent.begin(), product.exponent.end(),
                   [&](const SignedTerm& term) { return arena[term.term].has_score; })) {
    return refuse<Reason::kNoExponential>();
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const Factors factors, read_factors(arena, product));
  Refusal refusal = refuse<Reason::kNotDivided>();
  for (const SymId z : factors.over) {
    if (!holds_row_sum(arena, z)) {
      continue;
    }
    auto softmax = match_denominator(arena, product, z);
    if (softmax.ok()) {
      FLASHLIFT_RETURN_IF_ERROR(read_numerator(arena, product, factors, *softmax));
      return softmax;
    }
    refusal = softmax.error();
  }
  return refusal;
}

namespace {

// Rewrites a product under the assumption that the conditions hold that only its numerator has. The same conditions may
// also mask the scores. In an exponent, a condition is therefore removed only where it makes an exponential 0; in sums,
// none is removed.
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

bool is_log_sum_exp(SymArena& arena, SymId formula, const Softmax& softmax) {
  const Product product = as_exponent(arena, formula);  // e^formula must be the sum of e^score
  if (!product.guards.empty() || !product.over.empty() || product.times.size() != 1) {
    return false;
  }
  const std::vector<SignedTerm> added = sorted(product.exponent);  // must be what was subtracted in the sum
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
    const RowTerms terms = partition(arena, body.exponent);
    if (!body.over.empty() || !body.times.empty() || !is_shifted(terms.of_row)) {
      return false;
    }
    const SymId logit = sum_of(arena, terms.of_key);
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
