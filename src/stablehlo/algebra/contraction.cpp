#include "stablehlo/algebra/contraction.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stablehlo/algebra/product.h"

namespace flashlift::stablehlo {
namespace {

// coefficient * above / below. Only the coefficient does not depend on the index variable.
struct Factors {
  SymId coefficient = kNoSym;
  std::vector<SymId> above;
  std::vector<SymId> below;

  bool has_equal_rest(const Factors& other) const { return above == other.above && below == other.below; }
};

class Factoriser {
 public:
  Factoriser(SymArena& arena, int atom, bool through_rounding)
      : arena_(arena), atom_(atom), through_rounding_(through_rounding) {}

  std::optional<Factors> read(SymId id) {
    constexpr int kMostParts = 200;  // a part that formulas share is read at each of its uses
    if (++parts_ > kMostParts) {
      return std::nullopt;
    }
    if (!arena_.depends_on(id, atom_)) {
      return Factors{.coefficient = id, .above = {}, .below = {}};
    }
    const Sym sym = arena_[id];
    if (sym.kind == SymKind::kOp) {
      switch (sym.op) {
        case Op::k_mul:
          return joined(read(sym.args[0]), read(sym.args[1]), Op::k_mul);
        case Op::k_div:
          return joined(read(sym.args[0]), read(sym.args[1]), Op::k_div);
        case Op::k_neg: {
          auto factors = read(sym.args[0]);
          if (factors) {
            factors->coefficient = arena_.op(Op::k_neg, {factors->coefficient});
          }
          return factors;
        }
        case Op::k_select:
          if (!arena_.depends_on(sym.args[0], atom_)) {
            return selected(sym.args[0], read(sym.args[1]), read(sym.args[2]));
          }
          break;
        case Op::k_round_bf16:
        case Op::k_round_f16:
          if (through_rounding_) {
            return read(sym.args[0]);
          }
          break;
        default:
          break;
      }
    }
    return Factors{.coefficient = arena_.f32(1), .above = {id}, .below = {}};
  }

 private:
  std::optional<Factors> joined(std::optional<Factors> x, std::optional<Factors> y, Op op) {
    if (!x || !y) {
      return std::nullopt;
    }
    if (op == Op::k_div) {
      std::swap(y->above, y->below);
    }
    x->coefficient = arena_.op(op, {x->coefficient, y->coefficient});
    for (const auto& [into, from] : {std::pair(&x->above, &y->above), std::pair(&x->below, &y->below)}) {
      into->insert(into->end(), from->begin(), from->end());
      std::sort(into->begin(), into->end());
    }
    return x;
  }

  // A condition may set a row to 0: then only the other side has factors.
  std::optional<Factors> selected(SymId condition, const std::optional<Factors>& x, const std::optional<Factors>& y) {
    if (!x || !y) {
      return std::nullopt;
    }
    const bool x_is_zero = is_zero(arena_, x->coefficient);
    if (!x_is_zero && !is_zero(arena_, y->coefficient) && !x->has_equal_rest(*y)) {
      return std::nullopt;
    }
    Factors factors = x_is_zero ? *y : *x;
    factors.coefficient = arena_.op(Op::k_select, {condition, x->coefficient, y->coefficient});
    return factors;
  }

  SymArena& arena_;
  int atom_;
  bool through_rounding_;
  int parts_ = 0;
};

// The factors of a formula: what it is multiplied of, and what it is divided by.
void take_factors(SymArena& arena, SymId formula, std::vector<SymId>& above, std::vector<SymId>& below) {
  constexpr size_t kMostFactors = 200;
  std::vector<std::pair<SymId, bool>> stack = {{formula, true}};
  while (!stack.empty()) {
    const auto [id, is_above] = stack.back();
    stack.pop_back();
    const bool is_product = arena.is_op(id, Op::k_mul) || arena.is_op(id, Op::k_div);
    if (!is_product || above.size() + below.size() + stack.size() > kMostFactors) {
      (is_above ? above : below).push_back(id);
      continue;
    }
    const Sym& sym = arena[id];
    stack.emplace_back(sym.args[0], is_above);
    stack.emplace_back(sym.args[1], is_above == (sym.op == Op::k_mul));
  }
}

// x / y, without the factors that both have: these may be 0, and a gradient that reads them would read too much.
SymId quotient(SymArena& arena, SymId x, SymId y) {
  std::vector<SymId> above;
  std::vector<SymId> below;
  take_factors(arena, x, above, below);
  take_factors(arena, y, below, above);
  std::erase_if(above, [&](SymId factor) {
    const auto found = std::find(below.begin(), below.end(), factor);
    if (found == below.end()) {
      return false;
    }
    below.erase(found);
    return true;
  });
  SymId result = arena.f32(1);
  for (const SymId factor : above) {
    result = arena.op(Op::k_mul, {result, factor});
  }
  for (const SymId factor : below) {
    result = arena.op(Op::k_div, {result, factor});
  }
  return result;
}

}  // namespace

std::optional<SymId> coefficient_of(SymArena& arena, SymId formula, SymId x, SymId y, int atom, bool through_rounding) {
  const auto found = Factoriser(arena, atom, through_rounding).read(formula);
  const auto wanted = Factoriser(arena, atom, through_rounding).read(arena.op(Op::k_mul, {x, y}));
  if (!found || !wanted || !found->has_equal_rest(*wanted)) {
    return std::nullopt;
  }
  return quotient(arena, found->coefficient, wanted->coefficient);
}

}  // namespace flashlift::stablehlo
