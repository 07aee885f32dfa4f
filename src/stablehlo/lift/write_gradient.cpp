// Stage 8: writes the backward call, and places the module's sums in its results.
#include <algorithm>
#include <map>

#include "stablehlo/lift/stages.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// The captured tensor through which the backward call returns a term's gradient: the tensor of which the term is an
// element, or otherwise a new one, which the score reads in place of the term's own computation.
Outcome<Capture> read_term(Plane& plane, const Term& term, SymId& score, std::vector<LeafInfo>& infos) {
  const Sym& formula = plane.arena[term.formula];
  if (formula.kind == SymKind::kLoad &&
      plane.evaluator->leaves()[static_cast<size_t>(formula.payload)] == term.tensor.value) {
    const std::vector<SymId> loads = loads_of(plane.arena, score);
    const auto count = std::count_if(loads.begin(), loads.end(),
                                     [&](SymId load) { return plane.arena[load].payload == formula.payload; });
    if (count == 1 && std::find(loads.begin(), loads.end(), term.formula) != loads.end()) {
      return infos[static_cast<size_t>(formula.payload)].capture;
    }
  }
  Capture capture{
      .name = fmt::format("t{}", infos.size()), .dtype = *dtype(mlir::Value(term.tensor.value).getType()), .shape = {}};
  std::vector<SymId> indices;
  for (const std::vector<int>& digits : term.tensor.dims) {
    SymId index = plane.arena.i32(0);
    int64_t stride = 1;
    for (size_t i = digits.size(); i-- > 0;) {
      const SymId digit =
          plane.arena.op(Op::k_mul, {plane.evaluator->atom_formula(digits[i]), plane.arena.i32(stride)});
      index = plane.arena.op(Op::k_add, {index, digit});
      stride *= plane.sizes[static_cast<size_t>(digits[i])];
    }
    indices.push_back(index);
    capture.shape.push_back(stride);
  }
  const SymId load = plane.arena.load(static_cast<int64_t>(infos.size()), Type::kF32, indices);
  const SymId before = score;
  score = plane.arena.replace(score, term.formula, load);
  if (score == before) {
    return refuse<Reason::kUnreadTerm>();
  }
  infos.push_back({capture});
  return capture;
}

// How the value lies in a result of the call whose dimensions are these atoms, from major to minor. It is a sum over
// those that it lacks.
ResultView result_of_sum(const Plane& plane, const SumExit& exit, const std::vector<int64_t>& call_shape,
                         const std::vector<int>& order) {
  ResultView view{.replaced = exit.sum.tensor.value, .call_shape = call_shape, .dims = {}};
  for (const int atom : order) {
    view.digits.push_back(plane.sizes[static_cast<size_t>(atom)]);
  }
  const std::vector<int> kept = exit.sum.tensor.order();
  const auto add = [&](int atom) {
    view.permutation.push_back(std::find(order.begin(), order.end(), atom) - order.begin());
  };
  for (const int atom : order) {
    if (!llvm::is_contained(kept, atom)) {
      add(atom);
      ++view.summed;
    }
  }
  llvm::for_each(kept, add);
  return view;
}

}  // namespace

Outcome<LiftedGradient> write_gradient(Plane& plane, const Forward& forward, const Programs& programs,
                                       Gradient&& found) {
  LiftedGradient gradient{.d_out = std::move(found.d_out),
                          .d_lse = std::move(found.d_lse),
                          .d_q = std::move(found.d_q),
                          .d_k = std::move(found.d_k),
                          .d_v = std::move(found.d_v),
                          .problem = programs.problem,
                          .captures = programs.captures};
  if (found.sums.empty()) {
    return gradient;
  }
  SymId score = programs.score;
  std::vector<LeafInfo> infos = programs.leaves;
  std::map<std::string, mlir::Value> values;
  for (size_t i = 0; i < programs.captures.size(); ++i) {
    values[programs.problem.captures[i].name] = programs.captures[i];
  }
  std::map<SymId, std::pair<Capture, PlacedTensor>> known;  // by the term's formula
  for (const SumExit& exit : found.sums) {
    if (!exit.term) {
      std::vector<int> order = forward.dimensions.roles.heads();
      if (programs.match.softmax.sink_atoms[0] >= 0) {
        order.push_back(programs.match.softmax.sink_atoms[0]);
      }
      gradient.d_sinks.push_back(result_of_sum(plane, exit, {programs.problem.q_heads, programs.problem.sinks}, order));
      continue;
    }
    if (!known.contains(exit.term->formula)) {
      FLASHLIFT_ASSIGN_OR_RETURN(Capture read, read_term(plane, *exit.term, score, infos));
      values.emplace(read.name, exit.term->tensor.value);
      known.emplace(exit.term->formula, std::pair(std::move(read), exit.term->tensor));
    }
    const auto& [capture, tensor] = known.at(exit.term->formula);
    gradient.d_captures.push_back(
        {.capture = capture.name, .result = result_of_sum(plane, exit, capture.shape, tensor.order())});
  }
  if (gradient.d_captures.empty()) {
    return gradient;
  }
  const ProgramEmitter emitter(plane.arena, forward.dimensions.roles, plane.sizes, infos);
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
  return gradient;
}

}  // namespace flashlift::stablehlo
