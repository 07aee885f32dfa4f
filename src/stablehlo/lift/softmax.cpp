#include "stablehlo/lift/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "score/scalar.h"
#include "support/error.h"

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

void add_guard(SymArena& arena, std::vector<SymId>& guards, SymId condition) {
  if (arena.is_op(condition, Op::k_and)) {
    const std::vector<SymId> args = arena[condition].args;
    add_guard(arena, guards, args[0]);
    add_guard(arena, guards, args[1]);
  } else if (std::find(guards.begin(), guards.end(), condition) == guards.end()) {
    guards.push_back(condition);
  }
}

bool is_zero(const SymArena& arena, SymId id) { return arena.is_f32(id, 0.0f) || arena.is_f32(id, -0.0f); }

// The formula where the condition is known to hold.
SymId assume(SymArena& arena, SymId formula, SymId condition) {
  SymId result = arena.replace(formula, condition, arena.boolean(true));
  if (arena.is_op(condition, Op::k_and)) {
    const std::vector<SymId> args = arena[condition].args;
    result = assume(arena, assume(arena, result, args[0]), args[1]);
  }
  if (arena.is_op(condition, Op::k_not)) {
    result = arena.replace(result, arena[condition].args[0], arena.boolean(false));
  }
  return result;
}

// Takes a sum apart: the exponent of e. Terms that are -inf under a condition become guards.
class SumReader {
 public:
  SumReader(SymArena& arena, Product& product) : arena_(arena), product_(product) {}

  void read(SymId formula, bool negative) {
    const Sym sym = arena_[formula];
    if (sym.kind == SymKind::kOp) {
      switch (sym.op) {
        case Op::k_add:
          read(sym.args[0], negative);
          read(sym.args[1], negative);
          return;
        case Op::k_sub:
          read(sym.args[0], negative);
          read(sym.args[1], !negative);
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
          if (read_scaled(sym, negative)) {
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
  // A condition on the score itself cannot be a mask_mod: such a select stays a term.
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

  // (x - m) * c, as in e^((x - m) ln 2): the factor goes to the terms, so that m can cancel. Only where there is such
  // an m: (1 - mask) * -10000 must stay whole, or it would lift the keys that are kept by 10000 and round their scores.
  bool read_scaled(const Sym& sym, bool negative) {
    for (const auto& [sum, factor] : {std::pair(sym.args[0], sym.args[1]), std::pair(sym.args[1], sym.args[0])}) {
      const bool is_sum = arena_.is_op(sum, Op::k_add) || arena_.is_op(sum, Op::k_sub);
      if (!arena_.is_constant(factor) || !is_sum || !holds_row_statistic(sum)) {
        continue;
      }
      const std::vector<SymId> args = arena_[sum].args;
      const bool subtracts = arena_.is_op(sum, Op::k_sub);
      read(arena_.op(Op::k_mul, {args[0], factor}), negative);
      read(arena_.op(Op::k_mul, {args[1], factor}), negative != subtracts);
      return true;
    }
    return false;
  }

  // Whether a sum has a term that is computed from all scores of the row.
  bool holds_row_statistic(SymId sum) const {
    if (arena_.is_op(sum, Op::k_add) || arena_.is_op(sum, Op::k_sub)) {
      return holds_row_statistic(arena_[sum].args[0]) || holds_row_statistic(arena_[sum].args[1]);
    }
    return arena_[sum].has_score && !arena_.depends_on(sum, kKeyAtom);
  }

  // e^(-log z) is 1 / z.
  bool read_logarithm(SymId argument, bool negative) {
    const SymId inner = arena_.is_op(argument, Op::k_abs) ? arena_[argument].args[0] : argument;
    if (arena_[inner].kind != SymKind::kReduce) {
      return false;
    }
    (negative ? product_.over : product_.times).push_back(inner);
    return true;
  }

  SymArena& arena_;
  Product& product_;
};

// Guards against dividing by zero touch empty rows alone: max(z, tiny), z == 0 ? 1 : z.
SymId without_guard(const SymArena& arena, SymId z) {
  const Sym& sym = arena[z];
  if (arena.is_op(z, Op::k_abs)) {
    return without_guard(arena, sym.args[0]);
  }
  if (arena.is_op(z, Op::k_max)) {
    for (int side = 0; side < 2; ++side) {
      if (arena.is_constant(sym.args[side]) && arena.f32_value(sym.args[side]) < 1e-6f) {
        return without_guard(arena, sym.args[1 - side]);
      }
    }
  }
  if (arena.is_op(z, Op::k_select) && arena.is_op(sym.args[0], Op::k_eq)) {
    const std::vector<SymId>& compared = arena[sym.args[0]].args;
    const bool with_zero = is_zero(arena, compared[0]) || is_zero(arena, compared[1]);
    const SymId other = is_zero(arena, compared[0]) ? compared[1] : compared[0];
    if (with_zero && arena.is_constant(sym.args[1]) && other == sym.args[2]) {
      return without_guard(arena, sym.args[2]);
    }
  }
  return z;
}

// nan_to_num: p is NaN ? 0 : p, p == inf ? k : p. A softmax of finite scores is NaN in empty rows only (which are
// computed by themselves) and never infinite.
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

// Numbers for a row all of whose keys are masked.
class EmptyRowEvaluator {
 public:
  // masked_scores: the data masks, not a condition.
  EmptyRowEvaluator(const SymArena& arena, std::map<SymId, score::Scalar<float>> known, bool masked_scores)
      : arena_(arena), values_(std::move(known)), masked_(masked_scores) {}

  score::Scalar<float> evaluate(SymId id) {
    if (const auto found = values_.find(id); found != values_.end()) {
      return found->second;
    }
    const Sym& sym = arena_[id];
    score::Scalar<float> value;
    switch (sym.kind) {
      case SymKind::kConstant:
        value.i = sym.payload;
        value.f = sym.type == Type::kF32 ? arena_.f32_value(id) : 0.0f;
        break;
      case SymKind::kAtom:
        value.i = 1;
        break;
      case SymKind::kScore:  // where a term was rewritten and is not found in the formula, this masks it
        value.f = masked_ ? -kInfinity : 0.5f;
        break;
      case SymKind::kLoad:
        value = {.i = 1, .f = 0.25f};
        break;
      case SymKind::kOp: {
        std::vector<score::Scalar<float>> args;
        for (const SymId arg : sym.args) {
          args.push_back(evaluate(arg));
        }
        value = score::apply<float>(sym.op, sym.type, arena_[sym.args.back()].type, args);
        break;
      }
      case SymKind::kReduce:
        value = evaluate_reduce(id);
        break;
    }
    values_.emplace(id, value);
    return value;
  }

 private:
  score::Scalar<float> evaluate_reduce(SymId id) {
    score::Scalar<float> result;
    bool first = true;
    for (const ReducePiece& piece : arena_.pieces(id)) {
      const score::Scalar<float> body = evaluate(piece.body);
      const int copies = arena_.reduce_kind(id) == ReduceKind::kAdd && piece.size > 1 ? kKeys : 1;
      for (int copy = 0; copy < copies; ++copy) {
        result = first ? body : combine(arena_.reduce_kind(id), result, body, arena_[id].type);
        first = false;
      }
    }
    return result;
  }

  static score::Scalar<float> combine(ReduceKind kind, score::Scalar<float> x, score::Scalar<float> y, Type type) {
    static constexpr Op kOps[] = {Op::k_add, Op::k_max, Op::k_min, Op::k_and, Op::k_or};
    const score::Scalar<float> both[] = {x, y};
    return score::apply<float>(kOps[static_cast<size_t>(kind)], type, type, both);
  }

 public:
  static constexpr int kKeys = 4;  // of the imagined row

 private:
  const SymArena& arena_;
  std::map<SymId, score::Scalar<float>> values_;
  bool masked_;
};

}  // namespace

Product as_product(SymArena& arena, SymId formula) {
  const Sym sym = arena[formula];
  Product product;
  if (sym.kind == SymKind::kOp) {
    switch (sym.op) {
      case Op::k_mul:
        product = as_product(arena, sym.args[0]);
        multiply(product, as_product(arena, sym.args[1]));
        return product;
      case Op::k_div:
        product = as_product(arena, sym.args[0]);
        divide(arena, product, sym.args[1]);
        return product;
      case Op::k_exp:
        SumReader(arena, product).read(sym.args[0], false);
        return product;
      case Op::k_select:
        if (is_clean_up(arena, sym)) {
          return as_product(arena, sym.args[2]);
        }
        for (const auto& [kept, masked, keeps_when_true] :
             {std::tuple(sym.args[1], sym.args[2], true), std::tuple(sym.args[2], sym.args[1], false)}) {
          if (is_zero(arena, masked)) {
            const SymId guard = keeps_when_true ? sym.args[0] : arena.op(Op::k_not, {sym.args[0]});
            product = as_product(arena, assume(arena, kept, guard));
            add_guard(arena, product.guards, guard);
            return product;
          }
        }
        break;
      default:
        break;
    }
  }
  if (!arena.is_f32(formula, 1.0f)) {
    product.times.push_back(formula);
  }
  return product;
}

void multiply(Product& product, const Product& factor) {
  append(product.guards, factor.guards);
  append(product.exponent, factor.exponent);
  append(product.over, factor.over);
  append(product.times, factor.times);
  product.guards = sorted(product.guards);
  product.guards.erase(std::unique(product.guards.begin(), product.guards.end()), product.guards.end());
}

void divide(SymArena& arena, Product& product, SymId divisor) {
  const Product below = as_product(arena, without_guard(arena, divisor));
  if (!below.guards.empty()) {
    product.over.push_back(divisor);
    return;
  }
  for (const SignedTerm& term : below.exponent) {
    product.exponent.push_back({term.term, !term.negative});
  }
  append(product.over, below.times);
  append(product.times, below.over);
}

namespace {

// One piece of the denominator, or why it does not fit the numerator.
struct Denominator {
  std::vector<SymId> guards;
  std::vector<SignedTerm> of_key;
  std::vector<SignedTerm> of_row;
};

// The parts of a divisor: pieces of reductions, and what is added to them, which is a sink a piece. A number so small
// that it is lost next to the largest term, e^0 once the row maximum is subtracted, is no part.
Result<std::vector<ReducePiece>> parts_of_divisor(const SymArena& arena, SymId z, bool subtracts_maximum) {
  constexpr float kLostBesideOne = 2.9e-8f;  // half an ulp below 1
  std::vector<ReducePiece> parts;
  std::vector<SymId> stack{z};
  while (!stack.empty()) {
    const SymId id = stack.back();
    stack.pop_back();
    if (arena.is_op(id, Op::k_add)) {
      stack.insert(stack.end(), arena[id].args.begin(), arena[id].args.end());
    } else if (arena[id].kind == SymKind::kReduce && arena.reduce_kind(id) == ReduceKind::kAdd) {
      append(parts, arena.pieces(id));
    } else if (arena.is_constant(id)) {
      if (!subtracts_maximum || std::abs(arena.f32_value(id)) > kLostBesideOne) {
        return unsupported("a constant is added to the row sum");
      }
    } else {
      parts.push_back({.body = id, .size = 1, .atom = -1});
    }
  }
  return parts;
}

bool holds_row_sum(const SymArena& arena, SymId z) {
  if (arena.is_op(z, Op::k_add)) {
    return holds_row_sum(arena, arena[z].args[0]) || holds_row_sum(arena, arena[z].args[1]);
  }
  return arena[z].kind == SymKind::kReduce && arena.reduce_kind(z) == ReduceKind::kAdd;
}

Result<Softmax> match_denominator(SymArena& arena, const Product& numerator, SymId z) {
  Softmax softmax;
  softmax.denominator = z;
  std::vector<SignedTerm> of_key;
  std::vector<SignedTerm> of_row;
  partition(arena, numerator.exponent, of_key, of_row);
  std::vector<SymId> key_guards;
  for (const SymId guard : numerator.guards) {
    if (depends_on_key(arena, guard)) {
      key_guards.push_back(guard);
    }
  }
  const bool subtracts_maximum = std::any_of(of_row.begin(), of_row.end(), [&](const SignedTerm& term) {
    return term.negative && arena[term.term].kind == SymKind::kReduce &&
           arena.reduce_kind(term.term) == ReduceKind::kMaximum;
  });
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<ReducePiece> parts, parts_of_divisor(arena, z, subtracts_maximum));
  bool found_keys = false;
  for (const ReducePiece& piece : parts) {
    const Product body = as_product(arena, piece.body);
    if (!body.over.empty() || !body.times.empty()) {
      return unsupported("the row sum that divides is not a sum of exponentials alone");
    }
    if (piece.atom != kKeyAtom) {  // a sink: e^(logit - what is subtracted)
      std::vector<SignedTerm> logit = body.exponent;
      for (const SignedTerm& term : of_row) {
        const auto same = std::find(logit.begin(), logit.end(), term);
        if (same == logit.end()) {
          return unsupported("a part of the row sum is shifted by another amount than the scores are");
        }
        logit.erase(same);
      }
      if (!body.guards.empty()) {
        return unsupported("sink logits are masked");
      }
      softmax.sinks.push_back(sum_of(arena, logit));
      softmax.sink_sizes.push_back(piece.size);
      softmax.sink_atoms.push_back(piece.atom);
      continue;
    }
    std::vector<SignedTerm> z_key;
    std::vector<SignedTerm> z_row;
    partition(arena, body.exponent, z_key, z_row);
    if (found_keys || sorted(z_key) != sorted(of_key) || z_key.empty()) {
      return unsupported("the row sum that divides is of other exponentials than those it divides");
    }
    if (sorted(z_row) != sorted(of_row)) {
      return unsupported("exponentials and their row sum are shifted by different amounts");
    }
    for (const SymId guard : body.guards) {
      if (std::find(numerator.guards.begin(), numerator.guards.end(), guard) == numerator.guards.end()) {
        return unsupported("the row sum masks keys that the probabilities do not mask");
      }
    }
    for (const SymId guard : key_guards) {
      if (std::find(body.guards.begin(), body.guards.end(), guard) == body.guards.end()) {
        return unsupported("the probabilities are masked again after the softmax (dropout or a second mask)");
      }
    }
    softmax.guards = body.guards;
    found_keys = true;
  }
  if (!found_keys) {
    return unsupported("the divisor is not a sum over the keys");
  }
  softmax.score = sum_of(arena, of_key);
  softmax.key_terms = of_key;
  softmax.subtracted = of_row;
  return softmax;
}

// Whether a condition on the row says no more than "the row has a kept key".
bool says_not_empty(SymArena& arena, SymId condition, const Softmax& softmax, SymId whole_score) {
  const auto is_infinite_constant = [&](SymId id) { return arena.is_f32(id, -kInfinity); };
  const auto kept = [&](SymId body) {  // "this key is kept", for the key of a reduction's body
    if (arena.is_op(body, Op::k_ne) || (arena.is_op(body, Op::k_not) && arena.is_op(arena[body].args[0], Op::k_eq))) {
      const std::vector<SymId> args = arena[arena.is_op(body, Op::k_ne) ? body : arena[body].args[0]].args;
      const SymId other = is_infinite_constant(args[0]) ? args[1] : args[0];
      if (!is_infinite_constant(args[0]) && !is_infinite_constant(args[1])) {
        return false;
      }
      Product product;
      SumReader(arena, product).read(other, false);
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
    Product product;
    SumReader(arena, product).read(pieces[0].body, false);
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
      return says_not_empty(arena, arena.op(Op::k_ne, arena[inner].args), softmax, whole_score);
    }
    return false;
  }
  if (arena.is_op(condition, Op::k_is_finite)) {
    return is_row_maximum(arena[condition].args[0]);
  }
  for (const Op op : {Op::k_ne, Op::k_lt}) {  // -inf != max, -inf < max, 0 != z, 0 < z
    if (arena.is_op(condition, op)) {
      const std::vector<SymId>& args = arena[condition].args;
      for (int side = 0; side < (op == Op::k_ne ? 2 : 1); ++side) {
        if ((is_infinite_constant(args[side]) && is_row_maximum(args[1 - side])) ||
            (is_zero(arena, args[side]) && args[1 - side] == softmax.denominator)) {
          return true;
        }
      }
    }
  }
  return false;
}

}  // namespace

Result<Softmax> match_softmax(SymArena& arena, const Product& product) {
  if (std::none_of(product.exponent.begin(), product.exponent.end(),
                   [&](const SignedTerm& term) { return arena[term.term].has_score; })) {
    return unsupported("what multiplies the values is no exponential of the scores");
  }
  for (const SymId factor : product.times) {
    if (depends_on_key(arena, factor)) {
      return unsupported("the probabilities are multiplied by a factor of their own (dropout or another weight)");
    }
  }
  for (const SymId divisor : product.over) {
    if (depends_on_key(arena, divisor)) {
      return unsupported("the exponentials are divided by something that is not one number a row");
    }
  }
  std::string reason = "the exponentials are not divided by their sum over the keys";
  for (size_t i = 0; i < product.over.size(); ++i) {
    const SymId z = product.over[i];
    if (!holds_row_sum(arena, z)) {
      continue;
    }
    auto softmax = match_denominator(arena, product, z);
    if (!softmax.ok()) {
      reason = softmax.error().message;
      continue;
    }
    if (product.over.size() > 1 || !product.times.empty()) {
      return unsupported("rows of probabilities are scaled by more than their sum");
    }
    for (const SymId guard : product.guards) {
      const bool known = std::find(softmax->guards.begin(), softmax->guards.end(), guard) != softmax->guards.end();
      if (!known && !says_not_empty(arena, guard, *softmax, softmax->score)) {
        return unsupported("rows of probabilities are set to 0 by a condition that is not their emptiness");
      }
    }
    return softmax;
  }
  return unsupported("{}", reason);
}

bool is_log_sum_exp(SymArena& arena, SymId formula, const Softmax& softmax) {
  Product product;  // of e^formula, which must be the sum of e^score
  SumReader(arena, product).read(formula, false);
  if (!product.guards.empty() || !product.over.empty() || product.times.size() != 1) {
    return false;
  }
  const SymId z = product.times[0];
  if (arena[z].kind != SymKind::kReduce || arena.reduce_kind(z) != ReduceKind::kAdd || !softmax.sinks.empty() ||
      arena.pieces(z).size() != 1) {
    return false;
  }
  const Product body = as_product(arena, arena.pieces(z)[0].body);
  std::vector<SignedTerm> of_key;
  std::vector<SignedTerm> of_row;
  partition(arena, body.exponent, of_key, of_row);
  if (!body.over.empty() || !body.times.empty() || sorted(body.guards) != sorted(softmax.guards) ||
      sum_of(arena, of_key) != softmax.score) {
    return false;
  }
  for (SignedTerm& term : of_row) {  // what was subtracted inside must have been added outside
    term.negative = !term.negative;
  }
  return sorted(of_row) == sorted(product.exponent);
}

Result<EmptyRows> classify_empty_rows(SymArena& arena, SymId probability, const Softmax& softmax) {
  if (!softmax.sinks.empty()) {
    return EmptyRows::kZero;  // a sink keeps every row from being empty
  }
  std::map<SymId, score::Scalar<float>> known;
  for (const SymId guard : softmax.guards) {
    if (arena.is_op(guard, Op::k_not)) {
      known[arena[guard].args[0]] = {.i = 1, .f = 0};
    }
    known[guard] = {.i = 0, .f = 0};
  }
  if (softmax.guards.empty()) {  // the data alone may mask: an added -inf
    for (const SignedTerm& term : softmax.key_terms) {
      known[term.term] = {.i = 0, .f = term.negative ? kInfinity : -kInfinity};
    }
  }
  EmptyRowEvaluator evaluator(arena, std::move(known), softmax.guards.empty());
  const float value = evaluator.evaluate(probability).f;
  if (std::isnan(value)) {
    return EmptyRows::kNan;
  }
  if (value == 0) {
    return EmptyRows::kZero;
  }
  if (std::abs(value - 1.0f / EmptyRowEvaluator::kKeys) < 1e-5f) {
    return EmptyRows::kUniform;
  }
  return unsupported("a row without any key left gives neither 0, nor the mean of the values, nor NaN");
}

namespace {

// The condition under which a formula is not the very negative constant that it is otherwise, and what it is then.
struct FiniteMask {
  SymId kept_when = kNoSym;
  SymId kept = kNoSym;
};

std::optional<FiniteMask> read_finite_mask(SymArena& arena, SymId formula, float at_most) {
  if (!arena.is_op(formula, Op::k_select)) {
    return std::nullopt;
  }
  const std::vector<SymId> args = arena[formula].args;
  if (arena[args[0]].has_score) {
    return std::nullopt;
  }
  for (const auto& [masked, kept, keeps_when_true] :
       {std::tuple(args[2], args[1], true), std::tuple(args[1], args[2], false)}) {
    if (arena.is_constant(masked) && arena.f32_value(masked) <= at_most) {
      return FiniteMask{keeps_when_true ? args[0] : arena.op(Op::k_not, {args[0]}), kept};
    }
  }
  return std::nullopt;
}

}  // namespace

bool extract_finite_mask(SymArena& arena, Softmax& softmax) {
  constexpr float kReplacedBelow = -30000.0f;
  constexpr float kAddedBelow = -1e20f;
  if (!softmax.guards.empty()) {
    return false;
  }
  if (const auto mask = read_finite_mask(arena, softmax.score, kReplacedBelow)) {
    softmax.guards.push_back(mask->kept_when);
    softmax.score = assume(arena, mask->kept, mask->kept_when);
    return true;
  }
  for (size_t i = 0; i < softmax.key_terms.size() && softmax.key_terms.size() > 1; ++i) {
    const SignedTerm term = softmax.key_terms[i];
    const auto mask = term.negative ? std::nullopt : read_finite_mask(arena, term.term, kAddedBelow);
    if (mask && is_zero(arena, mask->kept)) {
      softmax.key_terms.erase(softmax.key_terms.begin() + static_cast<std::ptrdiff_t>(i));
      softmax.guards.push_back(mask->kept_when);
      softmax.score = sum_of(arena, softmax.key_terms);
      return true;
    }
  }
  return false;
}

}  // namespace flashlift::stablehlo
