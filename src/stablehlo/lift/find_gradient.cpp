// Stage 5, if the gradient is fused: proves that all results of the score plane other than the output are gradients of
// the attention's operands.
#include <algorithm>
#include <map>

#include "llvm/ADT/DenseSet.h"

#include "stablehlo/algebra/contraction.h"
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

// A product that may give the gradient of the queries, keys or values.
struct PlacedExit {
  Exit exit;
  std::vector<Affine> other_indices;  // indices of the other operand
  PlacedTensor result;
  std::vector<int> shared;  // dimensions of the call's gradient over which the result is also summed
  bool sums_over_keys = false;
  float factor = 1;           // the other operand is the queries or keys times this
  bool is_of_values = false;  // it gives the gradient of the values, otherwise that of the queries or keys
};

// All orders of the depth's dimensions, beginning with the given one: a gradient's product may have them in another
// order than the scores' product.
std::vector<std::vector<int>> orders_of(const std::vector<int>& depth) {
  constexpr size_t kMost = 3;
  std::vector<std::vector<int>> orders;
  std::vector<int> order = depth;
  do {
    orders.push_back(order);
    std::next_permutation(order.begin(), order.end());
  } while (order != depth && depth.size() <= kMost);
  return orders;
}

Outcome<PlacedExit> place_exit(const Plane& plane, const Forward& forward, const Exit& exit) {
  const Operands& operands = forward.operands;
  const Roles& roles = forward.dimensions.roles;
  const std::vector<Affine> indices = affine_of(exit.plane_indices);
  const OperandDims dims = operand_dims(exit.product, exit.side);
  const bool sums_over_keys = std::any_of(dims.contract.begin(), dims.contract.end(), [&](int64_t d) {
    return plane.evaluator->runs_over_keys(indices[static_cast<size_t>(d)]);
  });
  bool is_summed_otherwise = false;
  std::vector<std::vector<int>> depths = orders_of(operands.depth);
  const size_t of_queries = depths.size();
  llvm::append_range(depths, orders_of(operands.value_depth));
  for (size_t i = 0; i < depths.size(); ++i) {
    const bool is_of_values = i >= of_queries;
    const auto other = other_indices(exit.product, exit.side, indices, depths[i], plane.sizes);
    if (!other) {
      continue;
    }
    // If the depths of queries and values have the same size, the other operand decides which one this is.
    float factor = 1;
    if (!is_of_values) {
      const ReadTensor& expected = sums_over_keys ? operands.k : operands.q;
      const auto ratio = ratio_of_tensors(exit.other(), *other, expected.value, expected.indices, plane.sizes);
      if (!ratio) {
        continue;
      }
      factor = *ratio;
    }
    auto result = place_tensor(
        exit.product->getResult(0),
        exit.side == 0 ? result_indices(exit.product, indices, *other) : result_indices(exit.product, *other, indices),
        plane.sizes);
    if (!result) {
      continue;
    }
    const std::vector<int> heads = sums_over_keys ? roles.heads() : roles.kv_head;
    const std::vector<int> wanted = joined({roles.batch, heads, sums_over_keys ? roles.query : roles.key, depths[i]});
    // The result may be summed over batches and heads that share the tensor, namely those that the product lacks.
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
                      .factor = factor,
                      .is_of_values = is_of_values};
  }
  const std::string place = describe(exit.product->getLoc());
  return is_summed_otherwise ? refuse<Reason::kProductNotSummed>(place) : refuse<Reason::kProductNoGradient>(place);
}

// Replaces parts of the formula, also inside sums over the keys, which use the same index variable for the key.
SymId replace_everywhere(SymArena& arena, SymId id, const std::map<SymId, SymId>& known,
                         std::map<SymId, SymId>& replaced) {
  if (const auto found = known.find(id); found != known.end()) {
    return found->second;
  }
  if (const auto found = replaced.find(id); found != replaced.end()) {
    return found->second;
  }
  const Sym sym = arena[id];
  SymId result = id;
  if (sym.kind == SymKind::kOp || sym.kind == SymKind::kLoad) {
    std::vector<SymId> args;
    for (const SymId arg : sym.args) {
      args.push_back(replace_everywhere(arena, arg, known, replaced));
    }
    result = args == sym.args             ? id
             : sym.kind == SymKind::kLoad ? arena.load(sym.payload, sym.type, args)
                                          : arena.op(sym.op, args);
  } else if (sym.kind == SymKind::kReduce) {
    std::vector<ReducePiece> pieces = arena.pieces(id);
    for (ReducePiece& piece : pieces) {
      piece.body = replace_everywhere(arena, piece.body, known, replaced);
    }
    result = arena.reduce(arena.reduce_kind(id), pieces);
  }
  if (const auto found = known.find(result); found != known.end()) {
    result = found->second;
  }
  replaced.emplace(id, result);
  return result;
}

class GradientFinder {
 public:
  GradientFinder(Plane& plane, const Forward& forward)
      : plane_(plane),
        forward_(forward),
        uses_(forward.operands.uses     ? *forward.operands.uses
              : forward.dimensions.uses ? *forward.dimensions.uses
                                        : read_score_uses(plane, forward.probabilities, &forward.match.softmax)),
        parts_{.probability = forward.match.whole, .undropped = forward.match.undropped},
        check_(plane.arena, plane.evaluator->atom_sizes(), forward.match.softmax, parts_, plane.half.has_value(),
               masks_to_compare(), [&plane](SymId condition) { return keeps_a_key(plane, condition); }) {}

  Outcome<Gradient> find();

 private:
  std::vector<SymId> masks_to_compare();
  Proof find_output_gradient();
  Proof take_output_gradient(mlir::Value value, const std::vector<Affine>& indices);
  void place_exits();
  void read_sums_over_depth();
  SymId read_over_keys(SymId formula);
  std::optional<SymId> as_sum_over_keys(const Evaluator::Place& place);
  SymId at_depth(mlir::Value value, const std::vector<Affine>& indices, int atom);
  Proof find_lse_gradient();
  Proof read_log_sum_exp(mlir::Value value);
  SymId times(SymId formula, float factor);
  bool is_gradient_of_given(SymId gradient, SymId shifted);
  Outcome<PlacedTensor> result_with_gradient(const PlacedExit& exit);
  Proof give(const PlacedExit& exit);
  Refusal with_second_values(const Refusal& refusal) const;
  Proof check_order() const;
  Proof check_divided() const;

  SymId shifted_score() {
    return score_with_shift(plane_.arena, forward_.match.softmax, uses_.values.at(plane_.pair.first).formula);
  }

  Plane& plane_;
  const Forward& forward_;
  ScoreUses uses_;
  SymId with_factor_of_d_out(SymId formula) {
    return d_out_factor_ == kNoSym ? formula : plane_.arena.op(Op::k_mul, {formula, d_out_factor_});
  }

  GradientParts parts_;
  GradientCheck check_;
  mlir::Operation* d_probability_product_ = nullptr;
  ReadTensor read_d_out_;                   // d_out, or d_out times d_out_factor_
  SymId d_out_factor_ = kNoSym;             // one number for each row
  std::map<SymId, SymId> sums_over_depth_;  // and their values over the keys
  std::map<SymId, SymId> with_factor_;      // formulas that were read over the keys: with the factor of d_out,
  std::map<SymId, SymId> with_sums_;        // and then with the sums
  std::vector<PlacedExit> exits_;
  Gradient found_;
};

// The conditions of masks for which rows without keys are compared. There are none for probabilities e^(s - L): these
// rows are refused because of the logarithm, with a reason of their own.
std::vector<SymId> GradientFinder::masks_to_compare() {
  const bool rounds_logarithm = llvm::any_of(
      uses_.exits, [&](const Exit& exit) { return as_product(plane_.arena, exit.formula).rounds_logarithm; });
  return rounds_logarithm ? std::vector<SymId>() : masks_of_whole_rows(plane_, forward_.match.softmax);
}

// If the division by the row sum comes after the second product, it also divides the gradient: d_out is the dividend.
Proof GradientFinder::take_output_gradient(mlir::Value value, const std::vector<Affine>& indices) {
  auto placed = place_tensor(value, indices, plane_.sizes);
  read_d_out_ = {value, indices};
  const Sources sources = follow_operand(value, indices, plane_.sizes, Conversions::kExact);
  mlir::Operation* const division =
      sources.tensors.empty() ? nullptr : mlir::Value(sources.tensors.back().value).getDefiningOp();
  const llvm::ArrayRef<mlir::Operation*> divided = plane_.divided;
  if (!divided.empty() && llvm::is_contained(divided.drop_front(), division)) {  // the first one divides the output
    placed = sources.tensors.back();
    const std::vector<Index> places = indices_of(*placed, plane_.sizes);
    DependsOn depends(plane_.pair.first, plane_.outputs());
    const unsigned side = kind(division) == OpKind::kDivide || depends(division->getOperand(1).getDefiningOp()) ? 0 : 1;
    std::optional<Refusal> refusal;
    const SymId factor = plane_.evaluator->try_evaluate(division->getOperand(1 - side), places, refusal);
    if (factor == kNoSym || placed->scale != 1 ||
        llvm::any_of(forward_.operands.value_depth, [&](int d) { return plane_.arena.depends_on(factor, d); })) {
      return refuse<Reason::kOutputGradientNotStrided>();
    }
    d_out_factor_ =
        kind(division) == OpKind::kDivide ? plane_.arena.op(Op::k_div, {plane_.arena.f32(1), factor}) : factor;
    placed->value = division->getOperand(side);
    value = placed->value;
  }
  if (!placed) {
    return refuse<Reason::kOutputGradientNotStrided>();
  }
  FLASHLIFT_ASSIGN_OR_RETURN(
      found_.d_out, whole_view(*placed, forward_.dimensions.roles, forward_.operands.value_depth, plane_.sizes));
  found_.d_out_operand = {value, affine_of(indices_of(*placed, plane_.sizes))};
  return {};
}

// d_out is multiplied with the values to compute the gradient of the probabilities. If the module does not compute that
// gradient, d_out is the tensor that the probabilities are multiplied with.
Proof GradientFinder::find_output_gradient() {
  const ReadTensor& v = forward_.operands.v;
  for (const GradientProduct& candidate : gradient_products(plane_, forward_.operands.value_depth)) {
    for (unsigned side = 0; side < 2; ++side) {
      if (is_same_tensor(candidate.product->getOperand(side), candidate.indices[side], v.value, v.indices,
                         plane_.sizes)) {
        parts_.d_probability = candidate.formula;
        d_probability_product_ = candidate.product;
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

// The formula of a tensor that has the values' depth, with another index variable in place of the depth.
SymId GradientFinder::at_depth(mlir::Value value, const std::vector<Affine>& indices, int atom) {
  std::vector<Index> places;
  for (const Affine& index : indices) {
    places.push_back({.affine = index == affine_atom(forward_.operands.value_depth[0]) ? affine_atom(atom) : index});
  }
  std::optional<Refusal> refusal;
  return plane_.evaluator->try_evaluate(value, places, refusal);
}

// Converts the row's sum c sum_d d_out_d out_d, computed by a reduction or a product, to the equal c sum_k p_k d_p_k.
// Here p is multiplied with the values: out_d = sum_k p_k v_kd, and d_p_k = sum_d d_out_d v_kd.
std::optional<SymId> GradientFinder::as_sum_over_keys(const Evaluator::Place& place) {
  SymArena& arena = plane_.arena;
  const int depth = forward_.operands.value_depth[0];
  const int64_t depth_size = plane_.sizes[static_cast<size_t>(depth)];
  const Sym sym = arena[place.formula];
  mlir::Value value = place.value;
  mlir::Operation* const definition = value.getDefiningOp();
  int atom = depth;
  SymId body = kNoSym;
  if (sym.kind == SymKind::kReduce && arena.reduce_kind(place.formula) == ReduceKind::kAdd) {
    const std::vector<ReducePiece> pieces = arena.pieces(place.formula);
    if (pieces.size() == 1 && pieces[0].atom >= 0 && pieces[0].size == depth_size) {
      atom = pieces[0].atom;
      body = pieces[0].body;
    }
  } else if (sym.kind == SymKind::kLoad && definition != nullptr && kind(definition) == OpKind::kReduce &&
             !any_computed(place.indices)) {
    const auto how = reduction(definition);
    if (how && how->reducer == Reducer::kAdd && how->inputs.size() == 1 && how->dims.size() == 1 &&
        splat(how->inits[0]) == 0.0 && shape(how->inputs[0])[static_cast<size_t>(how->dims[0])] == depth_size) {
      std::vector<Affine> indices = affine_of(place.indices);
      indices.insert(indices.begin() + how->dims[0], affine_atom(depth));
      body = at_depth(how->inputs[0], indices, depth);
    }
  } else if (sym.kind == SymKind::kLoad && definition != nullptr && is_product(definition) &&
             !any_computed(place.indices)) {
    std::vector<SymId> factors;
    for (unsigned side = 0; side < 2; ++side) {
      const OperandDims dims = operand_dims(definition, side);
      if (dims.free.empty() && dims.contract.size() == 1 &&
          shape(definition->getOperand(side))[static_cast<size_t>(dims.contract[0])] == depth_size) {
        factors.push_back(at_depth(definition->getOperand(side),
                                   operand_indices(dims, affine_of(place.indices), {affine_atom(depth)}, {}), depth));
      }
    }
    if (factors.size() == 2 && factors[0] != kNoSym && factors[1] != kNoSym) {
      body = arena.op(Op::k_mul, {factors[0], factors[1]});
    }
  }
  if (body == kNoSym) {
    return std::nullopt;
  }
  mlir::Value result = plane_.pair.second->getResult(0);
  const SymId out = at_depth(result, affine_of(indices_of(*forward_.operands.out, plane_.sizes)), atom);
  const SymId d_out = at_depth(found_.d_out_operand.value, found_.d_out_operand.indices, atom);
  if (out == kNoSym || d_out == kNoSym) {
    return std::nullopt;
  }
  const auto coefficient = coefficient_of(arena, body, d_out, out, atom, plane_.half.has_value());
  if (!coefficient) {
    return std::nullopt;
  }
  const SymId term = arena.op(Op::k_mul, {forward_.probabilities.formula, parts_.d_probability});
  const SymId sum = arena.reduce(
      ReduceKind::kAdd,
      {{.body = term, .size = plane_.sizes[kKeyAtom], .atom = plane_.sizes[kKeyAtom] == 1 ? -1 : kKeyAtom}});
  return arena.op(Op::k_mul, {*coefficient, sum});
}

// Hand-written backward passes sum the output's gradient times the output over the depth, and so does the gradient of a
// division after the product with the values. This function replaces such sums in the formulas by sums over the keys.
void GradientFinder::read_sums_over_depth() {
  if (parts_.d_probability == kNoSym) {
    return;
  }
  const bool may_be_read = forward_.operands.out && forward_.operands.value_depth.size() == 1;
  const std::vector<Evaluator::Place> places = plane_.evaluator->places();
  for (const Evaluator::Place& place : places) {
    if (const auto sum = may_be_read ? as_sum_over_keys(place) : std::nullopt) {
      sums_over_depth_.emplace(place.formula, *sum);
      with_factor_.emplace(place.formula, place.formula);  // stays until the sums are read
    }
  }
  for (Exit& exit : uses_.exits) {
    exit.formula = read_over_keys(exit.formula);
  }
  for (auto& [op, value] : uses_.values) {
    value.formula = read_over_keys(value.formula);
  }
}

// The factor is read first, because the sums already contain d_p with its factor.
SymId GradientFinder::read_over_keys(SymId formula) {
  if (sums_over_depth_.empty() && d_out_factor_ == kNoSym) {
    return formula;
  }
  const std::map<SymId, SymId> factor = {{parts_.d_probability, with_factor_of_d_out(parts_.d_probability)}};
  formula = replace_everywhere(plane_.arena, formula, factor, with_factor_);
  return replace_everywhere(plane_.arena, formula, sums_over_depth_, with_sums_);
}

// Keeps the products that may be gradients of queries, keys or values. All others count as other uses of the scores.
void GradientFinder::place_exits() {
  const ReadTensor& d_out = found_.d_out_operand;
  for (const Exit& exit : uses_.exits) {
    auto placed = place_exit(plane_, forward_, exit);
    if (placed.ok() && placed->is_of_values) {
      if (is_same_tensor(exit.other(), placed->other_indices, read_d_out_.value, read_d_out_.indices, plane_.sizes)) {
        placed->exit.formula = with_factor_of_d_out(placed->exit.formula);
      } else if (!is_same_tensor(exit.other(), placed->other_indices, d_out.value, d_out.indices, plane_.sizes)) {
        placed = refuse<Reason::kProductWithOther>(describe(exit.product->getLoc()));
      }
    }
    if (placed.ok()) {
      exits_.push_back(*std::move(placed));
    } else {
      uses_.ends[exit.product] = placed.error();
    }
  }
  std::erase_if(exits_, [&](const PlacedExit& placed) { return uses_.ends.contains(placed.exit.product); });
}

// The call's log-sum-exp, if the value is computed from it. The log-sum-exp is also there spread over the keys, which
// is no result of the call.
Proof GradientFinder::read_log_sum_exp(mlir::Value value) {
  Proof proof;
  for (mlir::Operation* op : uses_.log_sum_exps) {
    if (!DependsOn(op, {})(value.getDefiningOp())) {
      continue;
    }
    auto found = find_log_sum_exp(plane_, forward_, op->getResult(0));
    if (found.ok()) {
      found_.log_sum_exp = *std::move(found);
      return {};
    }
    proof = found.error();
  }
  return proof;
}

// Whether the formula is the gradient for any d_lse, not only for the formula that it is now: that may contain the
// log-sum-exp, as weights of parts of the keys do, e^(lse - lse of all parts), and overflow where scores are drawn
// large. Formulas read the given number then.
bool GradientFinder::is_gradient_of_given(SymId gradient, SymId shifted) {
  SymArena& arena = plane_.arena;
  if (!arena[parts_.d_lse].has_score) {
    return false;
  }
  const SymId as_computed = parts_.d_lse;
  const std::map<SymId, SymId> given = {{as_computed, arena.load(kGiven, Type::kF32, {})}};
  parts_.d_lse = given.begin()->second;
  std::map<SymId, SymId> replaced;
  if (!check_.is_gradient(replace_everywhere(arena, gradient, given, replaced), shifted).ok()) {
    parts_.d_lse = as_computed;
    return false;
  }
  for (PlacedExit& placed : exits_) {
    placed.exit.formula = replace_everywhere(arena, placed.exit.formula, given, replaced);
  }
  for (auto& [op, value] : uses_.values) {
    value.formula = replace_everywhere(arena, value.formula, given, replaced);
  }
  return true;
}

// Finds the gradient of the log-sum-exp, which is added to each row of the probabilities' gradient. It may be any value
// with one number for each row that depends neither on scores nor on probabilities, except through the call's results.
Proof GradientFinder::find_lse_gradient() {
  const auto of_scores =
      std::find_if(exits_.begin(), exits_.end(), [](const PlacedExit& placed) { return !placed.is_of_values; });
  if (of_scores == exits_.end()) {
    return {};
  }
  // result_with_gradient() takes either: the product alone, or with the factor that multiplies its result.
  std::vector<SymId> gradients = {times(of_scores->exit.formula, of_scores->factor)};
  if (const auto scaled = follow_scaling(of_scores->result, plane_.sizes, plane_.half)) {
    gradients.push_back(times(of_scores->exit.formula, of_scores->factor * scaled->scale));
  }
  const SymId shifted = shifted_score();
  const auto is_gradient = [&](SymId gradient) { return check_.is_gradient(gradient, shifted).ok(); };
  const auto is_of_given = [&](SymId gradient) { return is_gradient_of_given(gradient, shifted); };
  if (parts_.d_probability == kNoSym || llvm::any_of(gradients, is_gradient)) {
    return {};
  }
  std::vector<mlir::Operation*> given = uses_.log_sum_exps;
  llvm::append_range(given, plane_.outputs());
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
    parts_.d_lse = read_over_keys(place.formula);
    if (llvm::none_of(gradients, is_gradient) && llvm::none_of(gradients, is_of_given)) {
      continue;
    }
    FLASHLIFT_RETURN_IF_ERROR(read_log_sum_exp(value));
    FLASHLIFT_ASSIGN_OR_RETURN(found_.d_lse, operand_view(*tensor, forward_.dimensions.roles, {}, plane_.sizes, false));
    return {};
  }
  parts_.d_lse = kNoSym;
  return {};
}

// The product's result if that is the gradient, otherwise the result multiplied by the score's own scale.
Outcome<PlacedTensor> GradientFinder::result_with_gradient(const PlacedExit& exit) {
  if (exit.is_of_values) {
    FLASHLIFT_RETURN_IF_ERROR(check_.is_probability(exit.exit.formula));
    return exit.result;
  }
  // The call reads queries or keys before this factor: their gradient is the product's times it.
  const float before = exit.sums_over_keys ? forward_.dimensions.q.scale : forward_.dimensions.k.scale;
  const Proof proof = check_.is_gradient(times(exit.exit.formula, exit.factor), shifted_score());
  if (proof.ok() && before == 1) {
    return exit.result;
  }
  auto scaled = follow_scaling(exit.result, plane_.sizes, plane_.half);
  if (proof.ok() && scaled && scaled->scale == before) {
    scaled->scale = 1;
    return *std::move(scaled);
  }
  if (before != 1) {
    return proof.ok() ? refuse<Reason::kElementTypes>() : proof.error();
  }
  if (scaled && check_.is_gradient(times(exit.exit.formula, exit.factor * scaled->scale), shifted_score()).ok()) {
    scaled->scale = 1;
    return *std::move(scaled);
  }
  return proof.error();
}

SymId GradientFinder::times(SymId formula, float factor) {
  return factor == 1 ? formula : plane_.arena.op(Op::k_mul, {formula, plane_.arena.f32(factor)});
}

// Records the product's result as a gradient of the call, after proving that it is one.
Proof GradientFinder::give(const PlacedExit& exit) {
  std::optional<ResultView>& gradient = exit.is_of_values ? found_.d_v : exit.sums_over_keys ? found_.d_q : found_.d_k;
  if (gradient) {
    return refuse<Reason::kTwoGradients>();
  }
  FLASHLIFT_ASSIGN_OR_RETURN(PlacedTensor result, result_with_gradient(exit));
  for (const int atom : exit.shared) {
    result.dims.insert(result.dims.begin(), {atom});
  }
  const Operands& operands = forward_.operands;
  FLASHLIFT_ASSIGN_OR_RETURN(gradient,
                             result_view(result, forward_.dimensions.roles,
                                         exit.is_of_values ? operands.value_depth : operands.depth, plane_.sizes));
  gradient->summed = exit.shared.size();
  const Product product = as_product(plane_.arena, exit.exit.formula);
  found_.rounds_logarithm = found_.rounds_logarithm || product.rounds_logarithm;
  llvm::append_range(found_.apart, product.apart);
  return {};
}

// The reason for a value that is no gradient. Of two outputs of the same probabilities, each makes the other's gradient
// one that nothing here knows, and says more than any value in which both gradients meet.
Refusal GradientFinder::with_second_values(const Refusal& refusal) const {
  for (const Exit& exit : uses_.exits) {
    if (sum_alike(plane_.pair.second, exit.product, plane_.pair.side)) {
      return refuse<Reason::kSecondValues>(describe(exit.product->getLoc()));
    }
  }
  return refusal;
}

// The two calls must not depend on each other, as they would in a second derivative.
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

// Other users of the second product's result must lead back into the plane. Users of a divided gradient must lead to a
// placed product or to the product that computes the probabilities' gradient. Nothing else may need the scores.
Proof GradientFinder::check_divided() const {
  if (plane_.divided.empty()) {
    return {};
  }
  std::vector<mlir::Operation*> stack = plane_.divided;
  stack.front() = plane_.pair.second;  // in place of the division, which divides the output
  llvm::DenseSet<mlir::Operation*> seen;
  while (!stack.empty()) {
    mlir::Operation* op = stack.back();
    stack.pop_back();
    for (mlir::Operation* user : op->getUsers()) {
      const bool is_gradient =
          is_product(user) &&
          (llvm::any_of(exits_, [&](const PlacedExit& exit) { return exit.exit.product == user; }) ||
           user == d_probability_product_);
      if (is_gradient || uses_.values.contains(user) || plane_.is_output(user) || !seen.insert(user).second) {
        continue;
      }
      if (!is_removable(user) || is_product(user)) {
        return refuse<Reason::kReaches>(user->getName().getStringRef().str(), describe(user->getLoc()));
      }
      stack.push_back(user);
    }
  }
  return {};
}

Outcome<Gradient> GradientFinder::find() {
  if (plane_.evaluator->smallest_key_digits() != forward_.dimensions.roles.key) {
    return refuse<Reason::kKeyDimensionsOfGradient>();
  }
  FLASHLIFT_RETURN_IF_ERROR(find_output_gradient());
  read_sums_over_depth();
  place_exits();
  FLASHLIFT_RETURN_IF_ERROR(find_lse_gradient());
  GradientSums sums(plane_, forward_, uses_, check_, parts_.d_probability != kNoSym, found_.log_sum_exp);
  auto found = sums.find();
  if (!found.ok()) {
    return with_second_values(found.error());
  }
  found_.sums = *std::move(found);
  for (const PlacedExit& placed : exits_) {
    FLASHLIFT_RETURN_IF_ERROR(give(placed));
  }
  if (exits_.empty() && found_.sums.empty()) {
    return refuse<Reason::kNoGradient>();
  }
  FLASHLIFT_RETURN_IF_ERROR(check_divided());
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
