// Stage 5, where the gradient is fused: all that leaves the score plane beside the output is proved to be the gradients
// by the attention's operands.
#include <algorithm>

#include "stablehlo/algebra/gradient_check.h"
#include "stablehlo/lift/gradient_sums.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/lift/stages.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

std::vector<int> sorted(std::vector<int> atoms) {
  std::sort(atoms.begin(), atoms.end());
  return atoms;
}

std::vector<int> joined(std::initializer_list<std::vector<int>> parts) {
  std::vector<int> all;
  for (const auto& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return sorted(all);
}

// A product that may give the gradient by queries, keys or values.
struct PlacedExit {
  Exit exit;
  std::vector<Affine> other_indices;  // of the other operand
  PlacedTensor result;
  std::vector<int> shared;  // dimensions of the call's gradient that the result is summed over, too
  bool sums_over_keys = false;
  bool is_of_values = false;  // it gives the gradient by the values, otherwise that by queries or keys
};

Outcome<PlacedExit> place_exit(const Plane& plane, const Forward& forward, const Exit& exit) {
  const Operands& operands = forward.operands;
  const Roles& roles = forward.dimensions.roles;
  const std::vector<Affine> indices = affine_of(exit.plane_indices);
  const OperandDims dims = operand_dims(exit.product, exit.side);
  const bool sums_over_keys = std::any_of(dims.contract.begin(), dims.contract.end(), [&](int64_t d) {
    return plane.evaluator->runs_over_keys(indices[static_cast<size_t>(d)]);
  });
  bool is_summed_otherwise = false;
  for (const std::vector<int>* depth : {&operands.depth, &operands.value_depth}) {
    const auto other = other_indices(exit.product, exit.side, indices, *depth, plane.sizes);
    if (!other) {
      continue;
    }
    // Depths of queries and of values may be of one size: the operand tells which it is.
    if (depth == &operands.depth) {
      const ReadTensor& expected = sums_over_keys ? operands.k : operands.q;
      if (!is_same_tensor(exit.other(), *other, expected.value, expected.indices, plane.sizes)) {
        continue;
      }
    }
    auto result = place_tensor(
        exit.product->getResult(0),
        exit.side == 0 ? result_indices(exit.product, indices, *other) : result_indices(exit.product, *other, indices),
        plane.sizes);
    if (!result) {
      continue;
    }
    const std::vector<int> heads = sums_over_keys ? roles.heads() : roles.kv_head;
    const std::vector<int> wanted = joined({roles.batch, heads, sums_over_keys ? roles.query : roles.key, *depth});
    // Batches and heads that share the tensor may have been summed over, as they are where the product lacks them.
    std::vector<int> shared;
    std::vector<int> found = sorted(result->order());
    if (!sums_over_keys && roles.key.size() > 1 && std::erase(found, kKeyAtom) > 0) {
      found = joined({found, roles.key});
    }
    std::set_difference(wanted.begin(), wanted.end(), found.begin(), found.end(), std::back_inserter(shared));
    if (found.size() + shared.size() != wanted.size() || llvm::any_of(shared, [&](int atom) {
          return !llvm::is_contained(roles.batch, atom) && !llvm::is_contained(heads, atom);
        })) {
      is_summed_otherwise = true;
      continue;
    }
    return PlacedExit{.exit = exit,
                      .other_indices = *other,
                      .result = std::move(*result),
                      .shared = std::move(shared),
                      .sums_over_keys = sums_over_keys,
                      .is_of_values = depth == &operands.value_depth};
  }
  const std::string place = describe(exit.product->getLoc());
  return is_summed_otherwise ? refuse<Reason::kProductNotSummed>(place) : refuse<Reason::kProductNoGradient>(place);
}

class GradientFinder {
 public:
  GradientFinder(Plane& plane, const Forward& forward)
      : plane_(plane),
        forward_(forward),
        uses_(forward.operands.uses ? *forward.operands.uses
                                    : read_score_uses(plane, forward.probabilities, &forward.match.softmax)),
        parts_{.probability = forward.match.whole, .undropped = forward.match.undropped},
        check_(plane.arena, plane.evaluator->atom_sizes(), forward.match.softmax, parts_, plane.half.has_value()) {}

  Outcome<Gradient> find();

 private:
  Proof find_output_gradient();
  Proof take_output_gradient(mlir::Value value, const std::vector<Affine>& indices);
  void place_exits();
  Proof find_lse_gradient();
  Proof give(const PlacedExit& exit);
  Proof check_order() const;

  SymId shifted_score() {
    return score_with_shift(plane_.arena, forward_.match.softmax, uses_.values.at(plane_.pair.first).formula);
  }

  Plane& plane_;
  const Forward& forward_;
  ScoreUses uses_;
  GradientParts parts_;
  GradientCheck check_;
  std::vector<PlacedExit> exits_;
  Gradient found_;
};

Proof GradientFinder::take_output_gradient(mlir::Value value, const std::vector<Affine>& indices) {
  const auto placed = place_tensor(value, indices, plane_.sizes);
  if (!placed) {
    return refuse<Reason::kOutputGradientNotStrided>();
  }
  FLASHLIFT_ASSIGN_OR_RETURN(found_.d_out, operand_view(*placed, forward_.dimensions.roles,
                                                        forward_.operands.value_depth, plane_.sizes, false));
  found_.d_out_operand = {value, indices};
  return {};
}

// d_out is what is multiplied with the values to give the gradient by the probabilities, or, where nobody asks for that
// one, what the probabilities are multiplied with.
Proof GradientFinder::find_output_gradient() {
  const ReadTensor& v = forward_.operands.v;
  for (const GradientProduct& candidate : gradient_products(plane_, forward_.operands.value_depth)) {
    for (unsigned side = 0; side < 2; ++side) {
      if (is_same_tensor(candidate.product->getOperand(side), candidate.indices[side], v.value, v.indices,
                         plane_.sizes)) {
        parts_.d_probability = candidate.formula;
        return take_output_gradient(candidate.product->getOperand(1 - side), candidate.indices[1 - side]);
      }
    }
  }
  for (const Exit& exit : uses_.exits) {
    if (const auto placed = place_exit(plane_, forward_, exit);
        placed.ok() && !placed->sums_over_keys && placed->is_of_values) {
      return take_output_gradient(exit.other(), placed->other_indices);
    }
  }
  return refuse<Reason::kNoOutputGradient>();
}

// Keeps the products that may be gradients by queries, keys or values. Others read a gradient as anything else may.
void GradientFinder::place_exits() {
  const ReadTensor& d_out = found_.d_out_operand;
  for (const Exit& exit : uses_.exits) {
    auto placed = place_exit(plane_, forward_, exit);
    if (placed.ok() && placed->is_of_values &&
        !is_same_tensor(exit.other(), placed->other_indices, d_out.value, d_out.indices, plane_.sizes)) {
      placed = refuse<Reason::kProductWithOther>(describe(exit.product->getLoc()));
    }
    if (placed.ok()) {
      exits_.push_back(*std::move(placed));
    } else {
      uses_.ends[exit.product] = placed.error();
    }
  }
  std::erase_if(exits_, [&](const PlacedExit& placed) { return uses_.ends.contains(placed.exit.product); });
}

// What is added to each row of the gradient by the probabilities: the gradient by the row's log-sum-exp. Any value of
// rows may be it that is computed from neither scores nor probabilities, but from the call's results.
Proof GradientFinder::find_lse_gradient() {
  const auto of_scores =
      std::find_if(exits_.begin(), exits_.end(), [](const PlacedExit& placed) { return !placed.is_of_values; });
  if (of_scores == exits_.end()) {
    return {};
  }
  const SymId gradient = of_scores->exit.formula;
  const SymId shifted = shifted_score();
  if (parts_.d_probability == kNoSym || check_.is_gradient(gradient, shifted).ok()) {
    return {};
  }
  std::vector<mlir::Operation*> given = uses_.log_sum_exps;
  if (plane_.options.gradient == GradientUse::kBesideOutput) {
    given.push_back(plane_.pair.second);
  }
  DependsOn depends(plane_.pair.first, given);
  const std::vector<int> rows = row_atoms(plane_, forward_.probabilities);
  const std::vector<Evaluator::Place> places = plane_.evaluator->places();
  for (const Evaluator::Place& place : places) {
    mlir::Value value = place.value;
    if (any_computed(place.indices) || plane_.arena[place.formula].type != Type::kF32 ||
        plane_.arena.depends_on(place.formula, kKeyAtom) || dtype(value.getType()) != DType::kF32 ||
        depends(value.getDefiningOp())) {
      continue;
    }
    const auto tensor = place_tensor(value, affine_of(place.indices), plane_.sizes);
    const std::vector<int> order = tensor ? tensor->order() : std::vector<int>{};
    if (!tensor || !std::is_permutation(order.begin(), order.end(), rows.begin(), rows.end())) {
      continue;
    }
    parts_.d_lse = place.formula;
    if (!check_.is_gradient(gradient, shifted).ok()) {
      continue;
    }
    for (mlir::Operation* op : given) {
      if (op != plane_.pair.second && !found_.log_sum_exp && DependsOn(op, {})(value.getDefiningOp())) {
        FLASHLIFT_ASSIGN_OR_RETURN(found_.log_sum_exp, find_log_sum_exp(plane_, forward_, op->getResult(0)));
      }
    }
    FLASHLIFT_ASSIGN_OR_RETURN(found_.d_lse, operand_view(*tensor, forward_.dimensions.roles, {}, plane_.sizes, false));
    return {};
  }
  parts_.d_lse = kNoSym;
  return {};
}

// The product's result as a gradient of the call, once it is proved to be that.
Proof GradientFinder::give(const PlacedExit& exit) {
  std::optional<ResultView>& gradient = exit.is_of_values ? found_.d_v : exit.sums_over_keys ? found_.d_q : found_.d_k;
  if (gradient) {
    return refuse<Reason::kTwoGradients>();
  }
  PlacedTensor result = exit.result;
  for (const int atom : exit.shared) {
    result.dims.insert(result.dims.begin(), {atom});
  }
  const Operands& operands = forward_.operands;
  FLASHLIFT_ASSIGN_OR_RETURN(gradient,
                             result_view(result, forward_.dimensions.roles,
                                         exit.is_of_values ? operands.value_depth : operands.depth, plane_.sizes));
  gradient->summed = exit.shared.size();
  return exit.is_of_values ? check_.is_probability(exit.exit.formula)
                           : check_.is_gradient(exit.exit.formula, shifted_score());
}

// The two calls must not need each other, as they would for a second derivative.
Proof GradientFinder::check_order() const {
  const auto check = [&](mlir::Operation* exit) -> Proof {
    DependsOn depends(exit, {});
    mlir::Value d_lse = found_.d_lse ? found_.d_lse->source : mlir::Value();
    return depends(mlir::Value(found_.d_out_operand.value).getDefiningOp()) || (d_lse && depends(d_lse.getDefiningOp()))
               ? refuse<Reason::kSecondDerivative>()
               : Proof();
  };
  for (const PlacedExit& placed : exits_) {
    FLASHLIFT_RETURN_IF_ERROR(check(placed.exit.product));
  }
  for (const SumExit& exit : found_.sums) {
    FLASHLIFT_RETURN_IF_ERROR(check(mlir::Value(exit.sum.tensor.value).getDefiningOp()));
  }
  return {};
}

Outcome<Gradient> GradientFinder::find() {
  if (plane_.evaluator->smallest_key_digits() != forward_.dimensions.roles.key) {
    return refuse<Reason::kKeyDimensionsOfGradient>();
  }
  FLASHLIFT_RETURN_IF_ERROR(find_output_gradient());
  place_exits();
  FLASHLIFT_RETURN_IF_ERROR(find_lse_gradient());
  GradientSums sums(plane_, forward_, uses_, check_, parts_.d_probability != kNoSym, found_.log_sum_exp);
  FLASHLIFT_ASSIGN_OR_RETURN(found_.sums, sums.find());
  for (const PlacedExit& placed : exits_) {
    FLASHLIFT_RETURN_IF_ERROR(give(placed));
  }
  if (exits_.empty() && found_.sums.empty()) {
    return refuse<Reason::kNoGradient>();
  }
  FLASHLIFT_RETURN_IF_ERROR(check_order());
  return std::move(found_);
}

}  // namespace

Outcome<Gradient> find_gradient(Plane& plane, const Forward& forward) {
  auto found = GradientFinder(plane, forward).find();
  return found.ok() || found.error().reason == Reason::kNoOutputGradient
             ? std::move(found)
             : refuse<Reason::kNotByGradient>(found.error().text);
}

}  // namespace flashlift::stablehlo
