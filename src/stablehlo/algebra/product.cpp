#include "stablehlo/algebra/product.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "stablehlo/algebra/lists.h"
#include "stablehlo/algebra/log_sum.h"

namespace flashlift::stablehlo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The result of comparing a number in [1, kLargestSum] with a constant; nothing if it depends on the number.
std::optional<bool> compare_sum(Op op, bool sum_is_first, float constant) {
  const bool above = constant < 1;  // the sum is above the constant
  if (!above && !(constant > kLargestSum)) {
    return std::nullopt;
  }
  switch (op) {
    case Op::k_eq:
      return false;
    case Op::k_ne:
      return true;
    case Op::k_lt:
    case Op::k_le:
      return above != sum_is_first;
    default:  // formulas contain no k_gt and k_ge: they become k_lt and k_le when they are built
      return std::nullopt;
  }
}

// Removes the guards of a divisor against zero and infinity: max(z, tiny), z == 0 ? 1 : z, z > tiny ? z : tiny, min(z,
// huge). They have no effect if the sum of a row lies in [1, kLargestSum]. Sets `guarded` if there was a guard. Removes
// at most `depth` guards, since each may contain the next one twice.
SymId without_guard(const SymArena& arena, SymId z, bool& guarded, int depth = 8) {
  if (depth == 0) {
    return z;
  }
  const Sym& sym = arena[z];
  if (arena.is_op(z, Op::k_abs)) {
    return without_guard(arena, sym.args[0], guarded, depth - 1);
  }
  if (arena.is_op(z, Op::k_max) || arena.is_op(z, Op::k_min)) {
    for (size_t side = 0; side < 2; ++side) {
      if (!arena.is_constant(sym.args[side])) {
        continue;
      }
      const float bound = arena.f32_value(sym.args[side]);
      if (arena.is_op(z, Op::k_max) ? bound <= 1 : bound >= kLargestSum) {
        guarded = true;
        return without_guard(arena, sym.args[1 - side], guarded, depth - 1);
      }
    }
    return z;
  }
  if (!arena.is_op(z, Op::k_select) || arena[sym.args[0]].args.size() != 2) {
    return z;
  }
  const Sym& condition = arena[sym.args[0]];
  for (size_t side = 0; side < 2; ++side) {
    if (condition.kind != SymKind::kOp || !arena.is_constant(condition.args[side]) ||
        arena[condition.args[side]].type != Type::kF32) {
      continue;
    }
    const auto holds = compare_sum(condition.op, side == 1, arena.f32_value(condition.args[side]));
    if (!holds) {
      continue;
    }
    bool inner = false;
    const SymId sum = without_guard(arena, sym.args[*holds ? 1 : 2], inner, depth - 1);
    if (without_guard(arena, condition.args[1 - side], inner, depth - 1) == sum) {
      guarded = true;
      return sum;
    }
  }
  return z;
}

// A formula that a constant multiplies or divides.
struct Scaled {
  SymId inner = kNoSym;
  float factor = 0;
  bool divides = false;
};
std::optional<Scaled> scaled(const SymArena& arena, SymId formula) {
  const bool divides = arena.is_op(formula, Op::k_div);
  if (!divides && !arena.is_op(formula, Op::k_mul)) {
    return std::nullopt;
  }
  const std::vector<SymId>& args = arena[formula].args;
  const size_t side = !divides && arena.is_constant(args[0]) ? 0 : 1;
  return arena.is_constant(args[side]) ? std::optional(Scaled{args[1 - side], arena.f32_value(args[side]), divides})
                                       : std::nullopt;
}

// For a formula that is multiplied by a constant, and then by one that undoes it but for roundings, as ln 2 undoes log2
// e: the formula without both. A constant in it may overflow in between. kNoSym for other formulas.
SymId without_opposite_factors(const SymArena& arena, SymId formula) {
  const auto outer = scaled(arena, formula);
  const auto inner = outer ? scaled(arena, outer->inner) : std::nullopt;
  if (!inner ||
      (inner->divides == outer->divides ? inner->factor * outer->factor != 1.0f : inner->factor != outer->factor)) {
    return kNoSym;
  }
  const float factor = inner->divides ? 1 / inner->factor : inner->factor;
  const bool may_overflow = any_part({inner->inner}, [&](SymId id, std::vector<SymId>& next) {
    arena.push_args(id, next);
    return arena.is_constant(id) && arena[id].type == Type::kF32 && std::isfinite(arena.f32_value(id)) &&
           !std::isfinite(arena.f32_value(id) * factor);
  });
  return may_overflow ? kNoSym : inner->inner;
}

// Formulas share parts: written out, x + x of y + y of ... has exponentially many terms. Beyond these limits a part
// stays whole, which is correct, too.
constexpr size_t kMostTerms = 1024;
constexpr size_t kMostGuards = 1024;
constexpr int kMostFactors = 1024;
constexpr int64_t kMostAssumed = int64_t{1} << 20;  // formula parts that are searched for a condition

// Decomposes the exponent of e into the terms of a sum. Terms that are -inf under a condition become guards.
class SumReader {
 public:
  SumReader(SymArena& arena, Product& product, int depth = 0) : arena_(arena), product_(product), depth_(depth) {}

  void read(SymId formula, bool negative) {
    const Sym sym = arena_[formula];
    if (is_statistic(formula) && read_log_sum(formula, negative)) {
      return;
    }
    product_.rounds_logarithm = product_.rounds_logarithm || (negative && adds_to_logarithm(formula));
    if (sym.kind == SymKind::kOp && product_.exponent.size() < kMostTerms && product_.guards.size() < kMostGuards) {
      switch (sym.op) {
        case Op::k_add:
        case Op::k_sub:
          note_apart(sym.args[0], sym.args[1]);
          read(sym.args[0], negative);
          read(sym.args[1], negative != (sym.op == Op::k_sub));
          return;
        case Op::k_neg:
          read(sym.args[0], !negative);
          return;
        case Op::k_select:
          if (read_select(sym, negative)) {
            return;
          }
          break;
        case Op::k_mul:
        case Op::k_div:
          if (const SymId same = without_opposite_factors(arena_, formula); same != kNoSym) {
            read(same, negative);
            return;
          }
          if (read_scaled(formula, negative)) {
            return;
          }
          break;
        case Op::k_log:
          if (read_logarithm(sym.args[0], negative)) {
            return;
          }
          break;
        default:
          break;
      }
    }
    if (is_zero(arena_, formula)) {
      return;
    }
    product_.exponent.push_back({formula, negative});
  }

 private:
  // A select on a condition on the score itself stays a term, because no mask_mod can express it.
  bool read_select(const Sym& sym, bool negative) {
    const SymId condition = sym.args[0];
    if (negative || arena_[condition].has_score) {
      return false;
    }
    for (const auto& [kept, masked, keeps_when_true] :
         {std::tuple(sym.args[1], sym.args[2], true), std::tuple(sym.args[2], sym.args[1], false)}) {
      if (arena_.is_f32(masked, -kInfinity)) {
        const SymId guard = keeps_when_true ? condition : arena_.op(Op::k_not, {condition});
        add_guard(arena_, product_.guards, guard);
        read(assume(arena_, kept, guard), negative);
        return true;
      }
    }
    return false;
  }

  void note_apart(SymId x, SymId y) {
    if (!arena_.depends_on(x, kKeyAtom) || !arena_.depends_on(y, kKeyAtom)) {
      return;
    }
    for (const SymId term : {x, y}) {
      if (holds_row_statistic(term)) {
        product_.apart.push_back(term);
      }
    }
  }

  // Distributes the factor of (x - m) * c, as in e^((x - m) ln 2), over the terms, so that m can cancel. Does so only
  // if the sum contains such an m: (1 - mask) * -10000 must stay whole, otherwise 10000 would be added to the scores of
  // kept keys and round them. There may be several factors: exp2((x - m) * log2 e) is e^((x - m) * log2 e * ln 2).
  bool read_scaled(SymId formula, bool negative) {
    const auto [sum, factor] = without_factors(formula);
    // log2(z) ln 2 is log z, apart from the rounding of both constants.
    constexpr float kRoundings = 4.0f / (1 << 24);
    if (arena_.is_op(sum, Op::k_log) && std::abs(factor - 1) <= kRoundings) {
      return read_logarithm(arena_[sum].args[0], negative);
    }
    const bool subtracts = arena_.is_op(sum, Op::k_sub);
    if ((!arena_.is_op(sum, Op::k_add) && !subtracts) || !std::isfinite(factor) || !holds_row_statistic(sum)) {
      return false;
    }
    const std::vector<SymId> args = arena_[sum].args;
    note_apart(args[0], args[1]);
    const SymId constant = arena_.f32(factor);
    read(arena_.op(Op::k_mul, {args[0], constant}), negative);
    read(arena_.op(Op::k_mul, {args[1], constant}), negative != subtracts);
    return true;
  }

  // A formula without the constants that multiply and divide it, and their product.
  std::pair<SymId, float> without_factors(SymId formula) const {
    float factor = 1;
    while (const auto outer = scaled(arena_, formula)) {
      factor = outer->divides ? factor / outer->factor : factor * outer->factor;
      formula = outer->inner;
    }
    return {formula, factor};
  }

  // Whether the formula is the same for all keys, and the sum of a reduction's logarithm and something else. Both may
  // have constant factors, which are the same formula's in another base.
  bool adds_to_logarithm(SymId formula) const {
    const SymId sum = without_factors(formula).first;
    return (arena_.is_op(sum, Op::k_add) || arena_.is_op(sum, Op::k_sub)) && !arena_.depends_on(sum, kKeyAtom) &&
           any_term(arena_, sum, {Op::k_add, Op::k_sub}, [&](SymId term) {
             const SymId log = without_factors(term).first;
             bool guarded = false;
             return arena_.is_op(log, Op::k_log) && is_row_sum(without_guard(arena_, arena_[log].args[0], guarded));
           });
  }

  // Whether a sum has a term that is computed from all scores of the row.
  bool holds_row_statistic(SymId sum) const {
    return any_term(arena_, sum, {Op::k_add, Op::k_sub}, [&](SymId term) { return is_statistic(term); });
  }

  // Whether the formula is computed from all scores of the row.
  bool is_statistic(SymId formula) const { return arena_[formula].has_score && !arena_.depends_on(formula, kKeyAtom); }

  // Reads a row's logarithm of a sum of a few exponentials, one of which contains a row sum z, such as
  // logaddexp(m + log z, sink): e^m (z + e^(sink - m)). Or it is divided by z, as in softplus(sink - m - log z):
  // (z + e^(sink - m)) / z.
  bool read_log_sum(SymId formula, bool negative) {
    if (depth_ == kMostLogSums) {
      return false;
    }
    std::vector<Product> terms;
    for (const SymId logit : logits_of_log_sum(arena_, formula)) {
      SumReader(arena_, terms.emplace_back(), depth_ + 1).read(logit, false);
    }
    const auto is_plain = [](const Product& term) { return term.times.empty() && term.over.empty(); };
    const auto with_sum = std::partition(terms.begin(), terms.end(), is_plain);
    if (with_sum == terms.begin() || with_sum + 1 != terms.end() ||
        std::any_of(terms.begin(), terms.end(), [](const Product& term) { return !term.guards.empty(); }) ||
        with_sum->over.size() + with_sum->times.size() != 1) {
      return false;
    }
    const bool is_divided = !with_sum->over.empty();
    if (is_divided && terms.size() != 2) {
      return false;
    }
    const SymId z = is_divided ? with_sum->over[0] : with_sum->times[0];
    const std::vector<SignedTerm> factor = (is_divided ? terms.front() : *with_sum).exponent;
    SymId sum = z;
    for (auto term = terms.begin() + (is_divided ? 1 : 0); term != terms.end() - (is_divided ? 0 : 1); ++term) {
      const std::vector<SignedTerm> exponent = difference(term->exponent, factor);
      sum = arena_.op(Op::k_add, {sum, arena_.op(Op::k_exp, {sum_of(arena_, exponent)})});
    }
    product_.has_guard = product_.has_guard || with_sum->has_guard;
    product_.rounds_logarithm = product_.rounds_logarithm || (negative && !factor.empty());
    for (const SignedTerm& term : factor) {
      product_.exponent.push_back({term.term, term.negative != negative});
    }
    multiply_row_sum(sum, negative);
    if (is_divided) {
      multiply_row_sum(z, !negative);
    }
    return true;
  }

  static std::vector<SignedTerm> difference(std::vector<SignedTerm> terms, const std::vector<SignedTerm>& others) {
    for (const SignedTerm& term : others) {
      const auto same = std::find(terms.begin(), terms.end(), term);
      if (same != terms.end()) {
        terms.erase(same);
      } else {
        terms.push_back({term.term, !term.negative});
      }
    }
    return terms;
  }

  // Multiplies or divides by a row sum; it cancels.
  void multiply_row_sum(SymId sum, bool divides) {
    std::vector<SymId>& others = divides ? product_.times : product_.over;
    if (const auto same = std::find(others.begin(), others.end(), sum); same != others.end()) {
      others.erase(same);
      return;
    }
    (divides ? product_.over : product_.times).push_back(sum);
  }

  // A sum, or one with others beside it: numbers, which are guards or sinks, and exponentials of sinks.
  bool is_row_sum(SymId id) const {
    bool found = false;
    const bool has_others = any_term(arena_, id, {Op::k_add}, [&](SymId term) {
      const bool is_sum = arena_[term].kind == SymKind::kReduce;
      found = found || is_sum;
      const bool is_sink = arena_.is_op(term, Op::k_exp) && !arena_.depends_on(term, kKeyAtom);
      return !is_sum && !is_sink && !arena_.is_constant(term);
    });
    return found && !has_others;
  }

  // Reads e^(-log z) as 1 / z.
  bool read_logarithm(SymId argument, bool negative) {
    bool guarded = false;
    const SymId inner = without_guard(arena_, argument, guarded);
    if (!is_row_sum(inner)) {
      return false;
    }
    product_.has_guard = product_.has_guard || guarded;
    multiply_row_sum(inner, negative);
    return true;
  }

  static constexpr int kMostLogSums = 2;  // within each other

  SymArena& arena_;
  Product& product_;
  int depth_;
};

// Whether the select is part of nan_to_num: p is NaN ? 0 : p, p == inf ? k : p. If scores and row sums are finite, a
// softmax is never infinite, and NaN only in empty rows, which are analysed separately.
bool is_clean_up(const SymArena& arena, const Sym& select) {
  const SymId condition = select.args[0];
  if (!arena[condition].has_score || !arena.is_constant(select.args[1])) {
    return false;
  }
  const SymId p = select.args[2];
  const std::vector<SymId>& args = arena[condition].args;
  if (arena.is_op(condition, Op::k_ne)) {
    return args[0] == args[1] && args[0] == p && is_zero(arena, select.args[1]);
  }
  if (!arena.is_op(condition, Op::k_eq)) {
    return false;
  }
  const auto is_infinite = [&](SymId id) { return arena.is_f32(id, kInfinity) || arena.is_f32(id, -kInfinity); };
  return (args[0] == p && is_infinite(args[1])) || (args[1] == p && is_infinite(args[0]));
}

}  // namespace

void add_guard(SymArena& arena, std::vector<SymId>& guards, SymId condition) {
  any_term(arena, condition, {Op::k_and}, [&](SymId term) {
    if (std::find(guards.begin(), guards.end(), term) == guards.end()) {
      guards.push_back(term);
    }
    return false;
  });
}

bool is_zero(const SymArena& arena, SymId id) { return arena.is_f32(id, 0.0f) || arena.is_f32(id, -0.0f); }

SymId assume(SymArena& arena, SymId formula, SymId condition) {
  if (arena.replaced_parts() > kMostAssumed) {
    return formula;
  }
  const SymId yes = arena.boolean(true);
  const SymId no = arena.boolean(false);
  std::map<SymId, SymId> known{{condition, yes}};
  any_term(arena, condition, {Op::k_and}, [&](SymId term) {
    known.emplace(term, yes);
    if (arena.is_op(term, Op::k_not)) {
      known.emplace(arena[term].args[0], no);
    }
    return false;
  });
  return arena.replace_known(formula, known);
}

SymId sum_of(SymArena& arena, const std::vector<SignedTerm>& terms) {
  SymId sum = kNoSym;
  for (const SignedTerm& term : terms) {
    if (sum == kNoSym) {
      sum = term.negative ? arena.op(Op::k_neg, {term.term}) : term.term;
    } else {
      sum = arena.op(term.negative ? Op::k_sub : Op::k_add, {sum, term.term});
    }
  }
  return sum == kNoSym ? arena.f32(0.0f) : sum;
}

namespace {

// Decomposes a formula into the factors of a product.
class ProductReader {
 public:
  explicit ProductReader(SymArena& arena) : arena_(arena) {}

  Product read(SymId formula) {
    const Sym sym = arena_[formula];
    Product product;
    if (sym.kind == SymKind::kOp && left_-- > 0) {
      switch (sym.op) {
        case Op::k_mul: {
          product = read(sym.args[0]);
          const Product factor = read(sym.args[1]);
          note_apart(product, factor);
          multiply(product, factor);
          return product;
        }
        case Op::k_div:
          product = read(sym.args[0]);
          divide(product, sym.args[1]);
          return product;
        case Op::k_exp:
          SumReader(arena_, product).read(sym.args[0], false);
          return product;
        case Op::k_select:
          if (is_clean_up(arena_, sym)) {
            product = read(sym.args[2]);
            product.has_guard = true;
            return product;
          }
          if (read_select(sym, product)) {
            return product;
          }
          break;
        default:
          break;
      }
    }
    if (!arena_.is_f32(formula, 1.0f)) {
      product.times.push_back(formula);
    }
    return product;
  }

  void divide(Product& product, SymId divisor) {
    const Product below = read(without_guard(arena_, divisor, product.has_guard));
    if (!below.guards.empty()) {
      product.over.push_back(divisor);
      return;
    }
    append(product.apart, below.apart);
    note_apart(product, below);
    for (const SignedTerm& term : below.exponent) {
      product.exponent.push_back({term.term, !term.negative});
    }
    append(product.over, below.times);
    append(product.times, below.over);
    product.has_guard = product.has_guard || below.has_guard;
    product.rounds_logarithm = product.rounds_logarithm || below.rounds_logarithm;
  }

 private:
  // Must run before `factor`'s exponents are added to those of `product`.
  void note_apart(Product& product, const Product& factor) {
    const auto any_term_of = [&](const Product& each, const auto& is_wanted) {
      return std::any_of(each.exponent.begin(), each.exponent.end(),
                         [&](const SignedTerm& term) { return is_wanted(term.term); });
    };
    const auto is_of_key = [&](SymId term) { return arena_.depends_on(term, kKeyAtom); };
    const auto is_statistic = [&](SymId term) { return arena_[term].has_score && !is_of_key(term); };
    if (!any_term_of(product, is_of_key) || !any_term_of(factor, is_of_key)) {
      return;
    }
    std::vector<SymId> found;
    for (const Product* each : {&std::as_const(product), &factor}) {
      if (any_term_of(*each, is_statistic)) {
        found.push_back(sum_of(arena_, each->exponent));
      }
    }
    append(product.apart, found);
  }

  // Reads a select that is 0 under a condition.
  bool read_select(const Sym& sym, Product& product) {
    for (const auto& [kept, masked, keeps_when_true] :
         {std::tuple(sym.args[1], sym.args[2], true), std::tuple(sym.args[2], sym.args[1], false)}) {
      if (is_zero(arena_, masked)) {
        const SymId guard = keeps_when_true ? sym.args[0] : arena_.op(Op::k_not, {sym.args[0]});
        product = read(assume(arena_, kept, guard));
        add_guard(arena_, product.guards, guard);
        if (arena_[kept].has_score) {
          add_guard(arena_, product.clears, guard);
        }
        return true;
      }
    }
    return false;
  }

  SymArena& arena_;
  int left_ = kMostFactors;
};

}  // namespace

Product as_product(SymArena& arena, SymId formula) { return ProductReader(arena).read(formula); }

void multiply(Product& product, const Product& factor) {
  append(product.guards, factor.guards);
  append(product.clears, factor.clears);
  append(product.exponent, factor.exponent);
  append(product.over, factor.over);
  append(product.times, factor.times);
  product.has_guard = product.has_guard || factor.has_guard;
  product.rounds_logarithm = product.rounds_logarithm || factor.rounds_logarithm;
  append(product.apart, factor.apart);
  std::sort(product.guards.begin(), product.guards.end());
  product.guards.erase(std::unique(product.guards.begin(), product.guards.end()), product.guards.end());
}

void divide(SymArena& arena, Product& product, SymId divisor) { ProductReader(arena).divide(product, divisor); }

bool clears_nan(const SymArena& arena, SymId formula) {
  return any_part({formula}, [&](SymId id, std::vector<SymId>& next) {
    arena.push_args(id, next);
    return arena.is_op(id, Op::k_select) && arena.is_op(arena[id].args[0], Op::k_ne) && is_clean_up(arena, arena[id]);
  });
}

Product as_exponent(SymArena& arena, SymId formula) {
  Product product;
  SumReader(arena, product).read(formula, false);
  return product;
}

}  // namespace flashlift::stablehlo
