// Stage 7: the tensors that the call reads besides queries, keys, values and captured ones. Each is a value that the
// probabilities depend on and that has the formula's elements; it may have any dtype and be computed in any way.
#include <algorithm>
#include <functional>
#include <numeric>

#include "stablehlo/lift/products.h"
#include "stablehlo/lift/stages.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

OperandView view_of(mlir::Value source, const std::vector<int>& order, const std::vector<int64_t>& sizes) {
  OperandView view{.source = source, .reshape = {}, .permutation = {}, .dims = {}};
  for (const int atom : order) {
    view.reshape.push_back(sizes[static_cast<size_t>(atom)]);
  }
  return view;
}

int64_t position(const std::vector<int>& order, int atom) {
  return std::find(order.begin(), order.end(), atom) - order.begin();
}

bool is_sink_source(Plane& plane, mlir::Value value) {
  const auto type = dtype(value.getType());
  mlir::Operation* definition = value.getDefiningOp();
  return (type == DType::kF32 || type == DType::kBF16 || type == DType::kF16) &&
         (definition == nullptr || !plane.depends(definition));
}

// The boolean tensor as a keep mask, which has each dimension of the scores in full or shares it.
std::optional<KeepMask> keep_mask_of(const Plane& plane, const Roles& roles, const PlacedTensor& tensor) {
  const std::vector<int> order = tensor.order();
  KeepMask mask{.view = view_of(tensor.value, order, plane.sizes)};
  bool fits = true;
  for (const std::vector<int>& atoms : {roles.batch, roles.heads(), roles.query, roles.key}) {
    const auto present =
        std::count_if(atoms.begin(), atoms.end(), [&](int atom) { return llvm::is_contained(order, atom); });
    fits = fits && (present == 0 || present == static_cast<int64_t>(atoms.size()));
    mask.shape.push_back(present == 0 ? 1 : extent(atoms, plane.sizes));
    for (const int atom : present == 0 ? std::vector<int>{} : atoms) {
      mask.view.permutation.push_back(position(order, atom));
    }
  }
  return fits && mask.view.permutation.size() == order.size() ? std::optional(std::move(mask)) : std::nullopt;
}

int64_t elements(const KeepMask& mask) {
  return std::accumulate(mask.shape.begin(), mask.shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

// The sinks are the first value that has the logits as its elements, one for each head, or for each head and sink.
Outcome<std::optional<Sinks>> place_sinks(Plane& plane, const Forward& forward, const Programs& programs) {
  const Softmax& softmax = programs.match.softmax;
  if (softmax.sinks.empty()) {
    return std::optional<Sinks>();
  }
  if (softmax.sinks.size() != 1) {
    return refuse<Reason::kSinkPieces>(softmax.sinks.size());
  }
  const SymId logits = softmax.sinks[0];
  const int64_t count = softmax.sink_sizes[0];
  if (plane.arena.is_constant(logits)) {
    return std::optional(
        Sinks{.view = {.reshape = {programs.problem.q_heads, count}, .constant = plane.arena.f32_value(logits)},
              .count = count});
  }
  std::vector<int> wanted = forward.dimensions.roles.heads();
  if (softmax.sink_atoms[0] >= 0) {
    wanted.push_back(softmax.sink_atoms[0]);
  }
  const std::vector<int64_t>& sizes = plane.evaluator->atom_sizes();
  for (const Evaluator::Place& place : plane.evaluator->places()) {
    if (place.formula != logits || !is_sink_source(plane, place.value) || any_computed(place.indices)) {
      continue;
    }
    const auto tensor = place_tensor(place.value, affine_of(place.indices), sizes);
    const std::vector<int> order = tensor ? tensor->order() : std::vector<int>{};
    if (!tensor || !llvm::all_of(order, [&](int atom) { return llvm::is_contained(wanted, atom); })) {
      continue;
    }
    Sinks sinks{.view = view_of(place.value, order, sizes), .count = count};
    std::vector<int> whole;  // heads may share sinks, such as those that the roles call heads because they come last
    for (const int atom : wanted) {
      if (!llvm::is_contained(order, atom)) {
        whole.push_back(atom);
        sinks.view.repeated.push_back(sizes[static_cast<size_t>(atom)]);
      }
    }
    whole.insert(whole.end(), order.begin(), order.end());
    for (const int atom : whole == wanted ? std::vector<int>{} : wanted) {
      sinks.view.permutation.push_back(position(whole, atom));
    }
    return std::optional(std::move(sinks));
  }
  return refuse<Reason::kNoSinkTensor>();
}

// Dropout's keep mask is a tensor of the call. The module computes its bits outside the call, in whatever way.
Outcome<std::optional<KeepMask>> place_keep_mask(Plane& plane, const Forward& forward, const Programs& programs) {
  const Softmax& softmax = programs.match.softmax;
  if (softmax.keep.empty() && softmax.keep_factor == 1) {
    return std::optional<KeepMask>();
  }
  if (softmax.keep.empty()) {
    return refuse<Reason::kScaledRows>();
  }
  const bool gives_nan = programs.problem.empty_rows == EmptyRows::kNan || programs.nan_where_lse_is_minus_infinity;
  // A division behind the values, by a row sum that is NaN, gives NaN again.
  const bool clears_nan =
      softmax.keep_selects && gives_nan && !programs.match.divides_output && !is_never_empty(plane, softmax);
  if (clears_nan && softmax.keep_multiplies) {
    return refuse<Reason::kDropoutClearsNan>();
  }
  // The tensor may also contain the conditions that select keys. These have no further effect, except in a row without
  // keys that is the mean of the values, or NaN for keys that the tensor keeps.
  const bool may_contain_guards = programs.problem.empty_rows != EmptyRows::kUniform && !clears_nan;
  const auto is_wanted = [&](SymId formula) {
    std::vector<SymId> parts;
    add_guard(plane.arena, parts, formula);
    std::erase_if(parts, [&](SymId part) {
      return may_contain_guards && llvm::is_contained(softmax.guards, part) && !llvm::is_contained(softmax.keep, part);
    });
    return std::is_permutation(parts.begin(), parts.end(), softmax.keep.begin(), softmax.keep.end());
  };
  std::optional<KeepMask> smallest;
  for (const Evaluator::Place& place : plane.evaluator->places()) {
    if (dtype(mlir::Value(place.value).getType()) != DType::kBool || any_computed(place.indices) ||
        !is_wanted(place.formula)) {
      continue;
    }
    const auto tensor = place_tensor(place.value, affine_of(place.indices), plane.evaluator->atom_sizes());
    auto mask = tensor ? keep_mask_of(plane, forward.dimensions.roles, *tensor) : std::nullopt;
    if (mask && (!smallest || elements(*mask) < elements(*smallest))) {
      smallest = std::move(mask);
    }
  }
  if (smallest) {
    smallest->clears_nan = clears_nan;
    return smallest;
  }
  return softmax.keep.size() == 1 ? refuse<Reason::kNoKeepMask>() : refuse<Reason::kSeveralKeepConditions>();
}

}  // namespace flashlift::stablehlo
