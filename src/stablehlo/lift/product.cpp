#include "stablehlo/lift/product.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

namespace flashlift::stablehlo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// What a comparison of a number in [1, kLargestSum] with a constant gives; nothing if that hangs on the number.
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
    default:  // k_gt and k_ge are turned around when formulas are built
      return std::nullopt;
  }
}

// The sum that a divisor is for each row of keys if that sum lies in [1, kLargestSum]: without what guards it against
// zero and infinity, max(z, tiny), z == 0 ? 1 : z, z > tiny ? z : tiny, min(z, huge). `guarded` is set if there was any.
SymId without_guard(const SymArena& arena, SymId z, bool& guarded) {
  const Sym& sym = arena[z];
  if (arena.is_op(z, Op::k_abs)) {
    return without_guard(arena, sym.args[0], guarded);
  }
  if (arena.is_op(z, Op::k_max) || arena.is_op(z, Op::k_min)) {
    for (size_t side = 0; side < 2; ++side) {
      if (!arena.is_constant(sym.args[side])) {
        continue;
      }
      const float bound = arena.f32_value(sym.args[side]);
      if (arena.is_op(z, Op::k_max) ? bound <= 1 : bound >= kLargestSum) {
        guarded = true;
        return without_guard(arena, sym.args[1 - side], guarded);
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
    const SymId sum = without_guard(arena, sym.args[*holds ? 1 : 2], inner);
    if (without_guard(arena, condition.args[1 - side], inner) == sum) {
      guarded = true;
      return sum;
    }
  }
  return z;
}

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
    bool guarded = false;
    const SymId inner = without_guard(arena_, argument, guarded);
    if (arena_[inner].kind != SymKind::kReduce) {
      return false;
    }
    product_.has_guard = product_.has_guard || guarded;
    (negative ? product_.over : product_.times).push_back(inner);
    return true;
  }

  SymArena& arena_;
  Product& product_;
};

// nan_to_num: p is NaN ? 0 : p, p == inf ? k : p. A softmax of finite scores whose rows sum to numbers is NaN in empty
// rows only (which are computed by themselves) and never infinite.
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
          product = as_product(arena, sym.args[2]);
          product.has_guard = true;
          return product;
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
  product.has_guard = product.has_guard || factor.has_guard;
  std::sort(product.guards.begin(), product.guards.end());
  product.guards.erase(std::unique(product.guards.begin(), product.guards.end()), product.guards.end());
}

void divide(SymArena& arena, Product& product, SymId divisor) {
  const Product below = as_product(arena, without_guard(arena, divisor, product.has_guard));
  if (!below.guards.empty()) {
    product.over.push_back(divisor);
    return;
  }
  for (const SignedTerm& term : below.exponent) {
    product.exponent.push_back({term.term, !term.negative});
  }
  append(product.over, below.times);
  append(product.times, below.over);
  product.has_guard = product.has_guard || below.has_guard;
}

Product as_exponent(SymArena& arena, SymId formula) {
  Product product;
  SumReader(arena, product).read(formula, false);
  return product;
}

}  // namespace flashlift::stablehlo
