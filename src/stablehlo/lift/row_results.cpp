// Stage 5, if only the output is fused: proves that nothing but the output and the row log-sum-exp depends on the
// scores.
#include <algorithm>
#include <deque>

#include "llvm/ADT/DenseSet.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/lift/stages.h"
#include "stablehlo/lift/walk.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// The indices of a value with one element for each row: one dimension for each atom of the plane, in any order.
std::optional<std::vector<Index>> row_indices(const Plane& plane, const Probabilities& probabilities,
                                              mlir::Value value) {
  if (!static_tensor(value) || dtype(value.getType()) != DType::kF32) {
    return std::nullopt;
  }
  // Tries the order of the scores' dimensions in the first product and that of the probabilities. Values that are
  // transposed later are found by following uses.
  for (const auto& order : {probabilities.indices, plane.evaluator->score_indices()}) {
    std::vector<Index> indices;
    size_t d = 0;
    const auto dims = shape(value);
    for (const Index& index : order) {
      const bool is_key = plane.evaluator->runs_over_keys(index.affine);
      const int64_t size = index.affine.is_constant() ? 1 : affine_range(index.affine, plane.sizes).high + 1;
      if (is_key) {
        continue;
      }
      if (d < dims.size() && dims[d] == size) {
        indices.push_back(index);
        ++d;
      } else if (size != 1) {
        break;
      }
    }
    while (d < dims.size() && dims[d] == 1) {
      indices.push_back(Index{});
      ++d;
    }
    if (d == dims.size() && indices.size() == dims.size()) {
      return indices;
    }
  }
  return std::nullopt;
}

// The report's description of the nearest other product that reads scores or probabilities; otherwise of `last`, where
// their uses end.
std::string describe_other_use(const Plane& plane, mlir::Operation* last) {
  llvm::DenseSet<mlir::Operation*> seen;
  std::deque<mlir::Operation*> queue{plane.pair.first};
  while (!queue.empty()) {
    mlir::Operation* op = queue.front();
    queue.pop_front();
    for (mlir::Operation* user : op->getUsers()) {
      if (user == plane.pair.second || plane.is_output(user) || !seen.insert(user).second) {
        continue;
      }
      if (sum_alike(plane.pair.second, user, plane.pair.side)) {
        return refuse<Reason::kSecondValues>(describe(user->getLoc())).text;
      }
      if (is_product(user) && !side_summed_by_product(user)) {
        return fmt::format("the product at {} reads them", describe(user->getLoc()));
      }
      if (kind(user) == OpKind::kReturn && kind(user->getParentOp()) == OpKind::kWhile) {
        return fmt::format(
            "the loop at {} stores them; if only its backward pass reads them, put jax.checkpoint around its body",
            describe(user->getParentOp()->getLoc()));
      }
      if (kind(user) == OpKind::kReturn &&
          (kind(user->getParentOp()) == OpKind::kCase || kind(user->getParentOp()) == OpKind::kIf)) {
        return fmt::format(
            "a branch of the `{}` at {} returns them; if only its backward pass reads them, put jax.checkpoint around "
            "the function of the branch",
            user->getParentOp()->getName().getStringRef().str(), describe(user->getParentOp()->getLoc()));
      }
      queue.push_back(user);
    }
  }
  return fmt::format("they reach `{}` at {}", last->getName().getStringRef().str(), describe(last->getLoc()));
}

}  // namespace

std::vector<int> row_atoms(const Plane& plane, const Probabilities& probabilities) {
  std::vector<int> atoms;
  for (const Index& index : probabilities.indices) {
    for (const auto& term : index.affine.terms) {
      if (!plane.evaluator->runs_over_keys(affine_atom(term.first)) &&
          plane.sizes[static_cast<size_t>(term.first)] != 1) {
        atoms.push_back(term.first);
      }
    }
  }
  return atoms;
}

std::vector<mlir::Operation*> log_sum_exps_of(Plane& plane, const Probabilities& probabilities, const Softmax& softmax,
                                              mlir::Value row_sum) {
  constexpr size_t kFarthest = 32;
  std::vector<mlir::Operation*> found;
  any_operation({row_sum.user_begin(), row_sum.user_end()}, kFarthest, [&](mlir::Operation* op, OperationStack& stack) {
    const bool is_layout = kind(op) == OpKind::kReshape || kind(op) == OpKind::kTranspose ||
                           kind(op) == OpKind::kBroadcastInDim || kind(op) == OpKind::kConvert;
    if (!is_layout && !is_elementwise(op)) {
      return false;
    }
    const auto indices = kind(op) == OpKind::kAdd ? row_indices(plane, probabilities, op->getResult(0)) : std::nullopt;
    std::optional<Refusal> refusal;
    const SymId formula = indices ? plane.evaluator->try_evaluate(op->getResult(0), *indices, refusal) : kNoSym;
    if (formula != kNoSym && is_log_sum_exp(plane.arena, formula, softmax)) {
      found.push_back(op);
    } else {
      stack.insert(stack.end(), op->user_begin(), op->user_end());
    }
    return false;
  });
  return found;
}

Outcome<LogSumExp> find_log_sum_exp(Plane& plane, const Forward& forward, mlir::Value value) {
  const auto indices = row_indices(plane, forward.probabilities, value);
  if (!indices) {
    return refuse<Reason::kNoRow>();
  }
  std::vector<Index> again = forward.probabilities.indices;
  FLASHLIFT_ASSIGN_OR_RETURN(Evaluator evaluator, new_evaluator(plane, forward.probabilities.key_dims, again));
  const bool is_read = evaluator.evaluate(plane.pair.probabilities(), again) != kNoSym;
  const SymId formula = is_read ? evaluator.evaluate(value, *indices) : kNoSym;
  if (formula == kNoSym || !is_log_sum_exp(plane.arena, formula, forward.match.softmax)) {
    return refuse<Reason::kNoLogSumExp>();
  }
  auto placed = place_tensor(value, affine_of(*indices), plane.sizes);
  if (!placed) {
    return refuse<Reason::kNoStridedRow>();
  }
  for (auto next = placed; next && dtype(next->value.getType()) == DType::kF32;
       next = follow_result(*placed, plane.sizes, plane.half)) {
    placed = std::move(next);
  }
  FLASHLIFT_ASSIGN_OR_RETURN(ResultView view,
                             result_view(*placed, forward.dimensions.roles, forward.operands.value_depth, plane.sizes));
  return LogSumExp{.formula = formula, .view = std::move(view)};
}

Outcome<std::optional<LogSumExp>> check_uses(Plane& plane, const Forward& forward) {
  std::optional<LogSumExp> log_sum_exp;
  const auto is_replaced = [&](mlir::Value result) {
    return result == forward.dimensions.out_view.replaced || (log_sum_exp && result == log_sum_exp->view.replaced);
  };
  llvm::DenseSet<mlir::Operation*> seen;
  std::vector<mlir::Operation*> stack{plane.pair.first};
  while (!stack.empty()) {
    mlir::Operation* op = stack.back();
    stack.pop_back();
    if (!seen.insert(op).second) {
      continue;
    }
    for (const mlir::Value result : op->getResults()) {
      if (is_replaced(result)) {
        continue;
      }
      if (!log_sum_exp && !result.use_empty() && kind(op) == OpKind::kAdd) {
        if (auto found = find_log_sum_exp(plane, forward, result); found.ok()) {
          log_sum_exp = *std::move(found);
          if (is_replaced(result)) {
            continue;
          }
        }
      }
      for (mlir::Operation* user : result.getUsers()) {
        if (!is_removable(user)) {
          return refuse<Reason::kUsedElsewhere>(describe_other_use(plane, user));
        }
        stack.push_back(user);
      }
    }
  }
  return log_sum_exp;
}

}  // namespace flashlift::stablehlo
