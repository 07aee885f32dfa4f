// The backward pass of an attention: what leaves its score plane (attempt_exits.cpp), proved to be the gradients by its
// operands (attempt_numbers.cpp).
#include <algorithm>

#include "stablehlo/lift/attempt.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {

// Whether two operands of products are the same tensor read in the same way.
bool Attempt::is_same_tensor(mlir::Value x, const std::vector<Affine>& x_indices, mlir::Value y,
                             const std::vector<Affine>& y_indices) const {
  const Sources of_x = follow_operand(x, x_indices, sizes_, true);
  const Sources of_y = follow_operand(y, y_indices, sizes_, true);
  if (of_x.tensors.empty() || of_y.tensors.empty()) {
    return false;
  }
  const PlacedTensor& root_x = of_x.tensors.back();
  const PlacedTensor& root_y = of_y.tensors.back();
  return root_x.dims == root_y.dims && root_x.scale == root_y.scale && SameValues()(root_x.value, root_y.value);
}

// d_out is what is multiplied with the values to give the gradient by the probabilities, or, where nobody asks for that
// one, what the probabilities are multiplied with.
Proof Attempt::find_output_gradient() {
  const auto take = [&](mlir::Value value, const std::vector<Affine>& indices) -> Proof {
    const auto placed = place_tensor(value, indices, sizes_);
    if (!placed) {
      return refuse<Reason::kOutputGradientNotStrided>();
    }
    FLASHLIFT_ASSIGN_OR_RETURN(lifted_.gradient->d_out, operand_view(*placed, roles_, value_depth_, sizes_, false));
    d_out_operand_ = value;
    d_out_indices_ = indices;
    return {};
  };
  for (const GradientProduct& candidate : gradient_products()) {
    for (unsigned side = 0; side < 2; ++side) {
      if (is_same_tensor(candidate.product->getOperand(side), candidate.indices[side], v_operand_, v_indices_)) {
        gradient_formula_ = candidate.formula;
        return take(candidate.product->getOperand(1 - side), candidate.indices[1 - side]);
      }
    }
  }
  for (Exit& exit : exits_) {
    if (place_exit(exit).ok() && !exit.sums_over_keys && exit.is_of_values) {
      return take(exit.other(), exit.other_indices);
    }
  }
  return refuse<Reason::kNoOutputGradient>();
}

// What is added to each row of the gradient by the probabilities: the gradient by the row's log-sum-exp. Any value of
// rows may be it that is computed from neither scores nor probabilities, but from the call's results.
Proof Attempt::find_lse_gradient() {
  const auto of_scores =
      std::find_if(exits_.begin(), exits_.end(), [](const Exit& exit) { return !exit.is_of_values; });
  if (of_scores == exits_.end()) {
    return {};
  }
  const SymId shifted = score_with_shift(arena_, softmax_, plane_[first_].formula);
  if (gradient_formula_ == kNoSym || check().is_gradient(of_scores->formula, shifted).ok()) {
    return {};
  }
  std::vector<mlir::Operation*> given = log_sum_exps_;
  if (options_.gradient == GradientUse::kBesideOutput) {
    given.push_back(second_);
  }
  DependsOn depends(first_, given);
  const std::vector<Evaluator::Place> places = evaluator_->places();
  for (const Evaluator::Place& place : places) {
    const bool is_computed = std::any_of(place.indices.begin(), place.indices.end(),
                                         [](const Index& index) { return index.general != kNoSym; });
    if (is_computed || arena_[place.formula].type != Type::kF32 || arena_.depends_on(place.formula, kKeyAtom) ||
        dtype(place.value.getType()) != DType::kF32 || depends(mlir::Value(place.value).getDefiningOp())) {
      continue;
    }
    const auto tensor = place_tensor(place.value, affine_of(place.indices), sizes_);
    std::vector<int> order = tensor ? tensor->order() : std::vector<int>{};
    const std::vector<int> rows = row_atoms();
    if (!tensor || !std::is_permutation(order.begin(), order.end(), rows.begin(), rows.end())) {
      continue;
    }
    d_lse_formula_ = place.formula;
    if (!check().is_gradient(of_scores->formula, shifted).ok()) {
      continue;
    }
    for (mlir::Operation* op : given) {
      if (op != second_ && !lifted_.lse && DependsOn(op, {})(mlir::Value(place.value).getDefiningOp())) {
        FLASHLIFT_RETURN_IF_ERROR(find_log_sum_exp(op->getResult(0)));
      }
    }
    d_lse_ = place.value;
    FLASHLIFT_ASSIGN_OR_RETURN(lifted_.gradient->d_lse, operand_view(*tensor, roles_, {}, sizes_, false));
    return {};
  }
  d_lse_formula_ = kNoSym;
  return {};
}

// Without the output, the values are known as what the output's gradient is multiplied with.
Proof Attempt::place_values_of_gradient() {
  const unsigned other = 1 - side_;
  const auto other_shape = shape(second_->getOperand(other));
  FLASHLIFT_RETURN_IF_ERROR(check_atoms_left(other_shape.size()));
  for (const int64_t d : operand_dims(second_, other).free) {
    if (other_shape[static_cast<size_t>(d)] != 1) {
      value_depth_.push_back(new_atom(other_shape[static_cast<size_t>(d)]));
    }
  }
  d_out_operand_ = second_->getOperand(other);
  d_out_indices_ = *other_indices(second_, side_, affine_of(probability_indices_), value_depth_, sizes_);
  read_plane();
  for (const GradientProduct& candidate : gradient_products()) {
    for (unsigned side = 0; side < 2; ++side) {
      if (is_same_tensor(candidate.product->getOperand(side), candidate.indices[side], d_out_operand_,
                         d_out_indices_)) {
        v_operand_ = candidate.product->getOperand(1 - side);
        v_indices_ = candidate.indices[1 - side];
        return {};
      }
    }
  }
  return refuse<Reason::kNoOutputGradient>();
}

// The two calls must not need each other, as they would for a second derivative.
Proof Attempt::check_order() const {
  const auto check = [&](mlir::Operation* exit) {
    DependsOn depends(exit, {});
    return depends(mlir::Value(d_out_operand_).getDefiningOp()) ||
                   (d_lse_ && depends(mlir::Value(d_lse_).getDefiningOp()))
               ? refuse<Reason::kSecondDerivative>()
               : Proof();
  };
  for (const Exit& exit : exits_) {
    FLASHLIFT_RETURN_IF_ERROR(check(exit.product));
  }
  for (const SumExit& exit : sum_exits_) {
    FLASHLIFT_RETURN_IF_ERROR(check(mlir::Value(exit.sum.tensor.value).getDefiningOp()));
  }
  return {};
}

Proof Attempt::classify(const Exit& exit) {
  LiftedGradient& gradient = *lifted_.gradient;
  std::optional<ResultView>& place = exit.is_of_values     ? gradient.d_v
                                     : exit.sums_over_keys ? gradient.d_q
                                                           : gradient.d_k;
  if (place) {
    return refuse<Reason::kTwoGradients>();
  }
  PlacedTensor result = exit.result;
  for (const int atom : exit.shared) {
    result.dims.insert(result.dims.begin(), {atom});
  }
  FLASHLIFT_ASSIGN_OR_RETURN(place, result_view(result, roles_, exit.is_of_values ? value_depth_ : depth_, sizes_));
  place->summed = exit.shared.size();
  return exit.is_of_values
             ? check().is_probability(exit.formula)
             : check().is_gradient(exit.formula, score_with_shift(arena_, softmax_, plane_[first_].formula));
}

Proof Attempt::find_gradient() {
  if (Proof lifted = lift_gradient(); !lifted.ok()) {
    return refuse<Reason::kNotByGradient>(lifted.error().text);
  }
  return {};
}

Proof Attempt::lift_gradient() {
  if (roles_.key.size() > 1) {
    return refuse<Reason::kKeyDimensionsOfGradient>();
  }
  lifted_.gradient.emplace();
  if (plane_.empty()) {
    read_plane();
  }
  FLASHLIFT_RETURN_IF_ERROR(find_output_gradient());
  place_exits();
  FLASHLIFT_RETURN_IF_ERROR(find_lse_gradient());
  FLASHLIFT_RETURN_IF_ERROR(leave(first_));
  for (const Exit& exit : exits_) {
    FLASHLIFT_RETURN_IF_ERROR(classify(exit));
  }
  if (exits_.empty() && sum_exits_.empty()) {
    return refuse<Reason::kNoGradient>();
  }
  lifted_.problem.want_lse = true;  // the backward pass reads it
  return check_order();
}

// --- What the backward call gives beside the gradients by queries, keys and values ---

// The captured tensor by which the backward call gives the gradient by a term: the one that the term is an element of,
// or the term's own, which the score reads in place of what the term is computed from.
Outcome<Capture> Attempt::read_term(const Term& term, SymId& score, std::vector<LeafInfo>& infos) {
  const Sym& formula = arena_[term.formula];
  if (formula.kind == SymKind::kLoad &&
      evaluator_->leaves()[static_cast<size_t>(formula.payload)] == term.tensor.value) {
    const std::vector<SymId> loads = loads_of(arena_, score);
    const auto count =
        std::count_if(loads.begin(), loads.end(), [&](SymId load) { return arena_[load].payload == formula.payload; });
    if (count == 1 && std::find(loads.begin(), loads.end(), term.formula) != loads.end()) {
      return infos[static_cast<size_t>(formula.payload)].capture;
    }
  }
  Capture capture{
      .name = fmt::format("t{}", infos.size()), .dtype = *dtype(mlir::Value(term.tensor.value).getType()), .shape = {}};
  std::vector<SymId> indices;
  for (const std::vector<int>& digits : term.tensor.dims) {
    SymId index = arena_.i32(0);
    int64_t stride = 1;
    for (size_t i = digits.size(); i-- > 0;) {
      const SymId digit = arena_.op(Op::k_mul, {arena_.atom(digits[i]), arena_.i32(stride)});
      index = arena_.op(Op::k_add, {index, digit});
      stride *= sizes_[static_cast<size_t>(digits[i])];
    }
    indices.push_back(index);
    capture.shape.push_back(stride);
  }
  const SymId load = arena_.load(static_cast<int64_t>(infos.size()), Type::kF32, indices);
  const SymId before = score;
  score = arena_.replace(score, term.formula, load);
  if (score == before) {
    return refuse<Reason::kUnreadTerm>();
  }
  infos.push_back({capture});
  return capture;
}

// How what leaves lies in a result of the call whose dimensions are these atoms, major to minor.
ResultView Attempt::result_of_sum(const SumExit& exit, const std::vector<int64_t>& call_shape,
                                  const std::vector<int>& order) const {
  ResultView view{.replaced = exit.sum.tensor.value, .call_shape = call_shape, .dims = {}};
  for (const int atom : order) {
    view.digits.push_back(sizes_[static_cast<size_t>(atom)]);
  }
  for (const int atom : exit.sum.tensor.order()) {
    view.permutation.push_back(std::find(order.begin(), order.end(), atom) - order.begin());
  }
  return view;
}

// The problem of the backward call, and how the gradients by captured tensors lie. The programs of the forward call
// must have been built.
Proof Attempt::write_sums() {
  LiftedGradient& gradient = *lifted_.gradient;
  gradient.problem = lifted_.problem;
  gradient.captures = lifted_.captures;
  if (sum_exits_.empty()) {
    return {};
  }
  SymId score = program_score_;
  std::vector<LeafInfo> infos = leaf_infos_;
  std::map<std::string, mlir::Value> values;
  for (size_t i = 0; i < lifted_.captures.size(); ++i) {
    values[lifted_.problem.captures[i].name] = lifted_.captures[i];
  }
  std::map<SymId, std::pair<Capture, PlacedTensor>> known;  // by the term's formula
  for (const SumExit& exit : sum_exits_) {
    if (!exit.term) {
      std::vector<int> order = roles_.heads();
      if (softmax_.sink_atoms[0] >= 0) {
        order.push_back(softmax_.sink_atoms[0]);
      }
      gradient.d_sinks.push_back(result_of_sum(exit, {lifted_.problem.q_heads, lifted_.problem.sinks}, order));
      continue;
    }
    if (!known.contains(exit.term->formula)) {
      FLASHLIFT_ASSIGN_OR_RETURN(Capture read, read_term(*exit.term, score, infos));
      values.emplace(read.name, exit.term->tensor.value);
      known.emplace(exit.term->formula, std::pair(std::move(read), exit.term->tensor));
    }
    const auto& [capture, tensor] = known.at(exit.term->formula);
    gradient.d_captures.push_back(
        {.capture = capture.name, .result = result_of_sum(exit, capture.shape, tensor.order())});
  }
  if (gradient.d_captures.empty()) {
    return {};
  }
  const ProgramEmitter emitter(arena_, roles_, sizes_, infos);
  FLASHLIFT_ASSIGN_OR_RETURN(gradient.problem.score_mod, emitter.score_mod(score));
  FLASHLIFT_ASSIGN_OR_RETURN(gradient.problem.captures,
                             collect_captures(gradient.problem.score_mod, gradient.problem.mask_mod));
  gradient.captures.clear();
  for (const Capture& capture : gradient.problem.captures) {
    gradient.captures.push_back(values.at(capture.name));
  }
  for (const CaptureGradient& by : gradient.d_captures) {
    if (std::none_of(gradient.problem.captures.begin(), gradient.problem.captures.end(),
                     [&](const Capture& capture) { return capture.name == by.capture; })) {
      return refuse<Reason::kUnreadTerm>();
    }
  }
  FLASHLIFT_RETURN_IF_ERROR(verify(gradient.problem));
  return {};
}

}  // namespace flashlift::stablehlo
