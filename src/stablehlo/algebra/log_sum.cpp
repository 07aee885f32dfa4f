#include "stablehlo/algebra/log_sum.h"

#include <optional>
#include <utility>

#include "stablehlo/algebra/lists.h"
#include "stablehlo/algebra/product.h"

namespace flashlift::stablehlo {
namespace {

constexpr size_t kMostLogits = 8;

// The terms of a sum, or the operands of a maximum: also those that a concatenation put side by side. Empty if there
// are too many, or if one of them is a reduction over a longer range.
std::vector<SymId> operands(const SymArena& arena, SymId formula, Op op, ReduceKind kind) {
  std::vector<SymId> found;
  std::vector<SymId> stack{formula};
  while (!stack.empty()) {
    if (found.size() + stack.size() > kMostLogits) {
      return {};
    }
    const SymId id = stack.back();
    stack.pop_back();
    if (arena.is_op(id, op)) {
      arena.push_args(id, stack);
    } else if (arena[id].kind == SymKind::kReduce && arena.reduce_kind(id) == kind) {
      for (const ReducePiece& piece : arena.pieces(id)) {
        if (piece.size != 1 || piece.atom >= 0) {
          return {};
        }
        stack.push_back(piece.body);
      }
    } else {
      found.push_back(id);
    }
  }
  return found;
}

// JAX's logsumexp replaces a maximum that is not finite by 0.
SymId without_finite_guard(const SymArena& arena, SymId maximum) {
  if (!arena.is_op(maximum, Op::k_select)) {
    return maximum;
  }
  const std::vector<SymId>& args = arena[maximum].args;
  const bool is_guard =
      arena.is_op(args[0], Op::k_is_finite) && arena[args[0]].args[0] == args[1] && is_zero(arena, args[2]);
  return is_guard ? args[1] : maximum;
}

// The x_i of log(sum e^(x_i)), or of log(sum e^(x_i - shift)) if there is a shift.
std::vector<SymId> logits_of_logarithm(SymArena& arena, SymId formula, SymId shift) {
  const bool of_one_more = arena.is_op(formula, Op::k_log1p);
  if (!of_one_more && !arena.is_op(formula, Op::k_log)) {
    return {};
  }
  SymId sum = arena[formula].args[0];
  sum = arena.is_op(sum, Op::k_abs) ? arena[sum].args[0] : sum;  // sums of exponentials are positive
  std::vector<SymId> terms = operands(arena, sum, Op::k_add, ReduceKind::kAdd);
  if (of_one_more) {
    terms.push_back(arena.f32(1.0f));
  }
  std::vector<SymId> logits;
  for (const SymId term : terms) {
    if (shift == kNoSym && arena.is_f32(term, 1.0f)) {
      logits.push_back(arena.f32(0.0f));
      continue;
    }
    if (!arena.is_op(term, Op::k_exp)) {
      return {};
    }
    SymId logit = arena[term].args[0];
    if (shift != kNoSym) {
      if (!arena.is_op(logit, Op::k_sub) || arena[logit].args[1] != shift) {
        return {};
      }
      logit = arena[logit].args[0];
    }
    logits.push_back(logit);
  }
  return logits;
}

// A maximum of x and y, and log1p(e^(-|x - y|)) added to it.
struct LogAddExp {
  SymId x = kNoSym;
  SymId y = kNoSym;
  SymId difference = kNoSym;
};

// Whether a formula is x + y, or x - y. Formulas contain no sums with 0.
bool combines(const SymArena& arena, SymId id, Op op, SymId x, SymId y) {
  return (id == x && is_zero(arena, y)) || (arena.is_op(id, op) && arena[id].args[0] == x && arena[id].args[1] == y);
}

std::optional<LogAddExp> as_log_add_exp(const SymArena& arena, SymId maximum, SymId logarithm) {
  if (!arena.is_op(maximum, Op::k_max) || !arena.is_op(logarithm, Op::k_log1p)) {
    return std::nullopt;
  }
  const SymId exponential = arena[logarithm].args[0];
  const SymId negative = arena.is_op(exponential, Op::k_exp) ? arena[exponential].args[0] : exponential;
  const SymId distance = arena.is_op(negative, Op::k_neg) ? arena[negative].args[0] : negative;
  if (negative == exponential || distance == negative || !arena.is_op(distance, Op::k_abs)) {
    return std::nullopt;
  }
  const LogAddExp found{
      .x = arena[maximum].args[0], .y = arena[maximum].args[1], .difference = arena[distance].args[0]};
  const bool is_distance = combines(arena, found.difference, Op::k_sub, found.x, found.y) ||
                           combines(arena, found.difference, Op::k_sub, found.y, found.x);
  return is_distance ? std::optional(found) : std::nullopt;
}

std::vector<SymId> logits_of_sum(SymArena& arena, SymId formula) {
  const std::vector<SymId> args = arena[formula].args;
  for (const auto& [maximum, logarithm] : {std::pair(args[0], args[1]), std::pair(args[1], args[0])}) {
    if (const auto found = as_log_add_exp(arena, maximum, logarithm)) {
      return {found->x, found->y};
    }
    const std::vector<SymId> logits = logits_of_logarithm(arena, logarithm, maximum);
    const SymId largest = without_finite_guard(arena, maximum);
    if (logits.size() > 1 && sorted(operands(arena, largest, Op::k_max, ReduceKind::kMaximum)) == sorted(logits)) {
      return logits;
    }
  }
  return {};
}

// JAX's logaddexp and softplus give x + y where x - y is NaN, as for two infinite numbers.
std::vector<SymId> logits_of_select(const SymArena& arena, SymId formula) {
  const std::vector<SymId>& args = arena[formula].args;
  if (!arena.is_op(args[0], Op::k_ne) || !arena.is_op(args[2], Op::k_add)) {
    return {};
  }
  const std::vector<SymId>& compared = arena[args[0]].args;
  const std::vector<SymId>& added = arena[args[2]].args;
  for (const auto& [maximum, logarithm] : {std::pair(added[0], added[1]), std::pair(added[1], added[0])}) {
    const auto found = as_log_add_exp(arena, maximum, logarithm);
    if (!found || compared[0] != found->difference || compared[1] != found->difference) {
      continue;
    }
    if (combines(arena, args[1], Op::k_add, found->x, found->y) ||
        combines(arena, args[1], Op::k_add, found->y, found->x)) {
      return {found->x, found->y};
    }
  }
  return {};
}

}  // namespace

std::vector<SymId> logits_of_log_sum(SymArena& arena, SymId formula) {
  if (arena.is_op(formula, Op::k_add)) {
    return logits_of_sum(arena, formula);
  }
  if (arena.is_op(formula, Op::k_select)) {
    return logits_of_select(arena, formula);
  }
  const std::vector<SymId> logits = logits_of_logarithm(arena, formula, kNoSym);
  return logits.size() > 1 ? logits : std::vector<SymId>();
}

}  // namespace flashlift::stablehlo
