#include "stablehlo/lift/score_uses.h"

#include <algorithm>
#include <functional>

#include "stablehlo/lift/products.h"
#include "stablehlo/lift/stages.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// All ways to assign `atoms` to the dimensions of a tensor, each atom once. There are only a few, because the sizes
// must match.
void assign_atoms(llvm::ArrayRef<int64_t> dims, const std::vector<int>& atoms, const std::vector<int64_t>& sizes,
                  std::vector<std::vector<int>>& current, std::vector<std::vector<std::vector<int>>>& all) {
  constexpr size_t kMostAssignments = 200;
  if (all.size() >= kMostAssignments) {
    return;
  }
  if (dims.empty()) {
    size_t used = 0;
    for (const auto& digits : current) {
      used += digits.size();
    }
    if (used == atoms.size()) {
      all.push_back(current);
    }
    return;
  }
  const auto is_used = [&](int atom) {
    return std::any_of(current.begin(), current.end(), [&](const std::vector<int>& digits) {
      return std::find(digits.begin(), digits.end(), atom) != digits.end();
    });
  };
  const std::function<void(std::vector<int>, int64_t)> extend = [&](std::vector<int> digits, int64_t rest) {
    if (rest == 1) {
      current.push_back(digits);
      assign_atoms(dims.drop_front(), atoms, sizes, current, all);
      current.pop_back();
      return;
    }
    for (const int atom : atoms) {
      const int64_t size = sizes[static_cast<size_t>(atom)];
      if (!is_used(atom) && std::find(digits.begin(), digits.end(), atom) == digits.end() && rest % size == 0) {
        digits.push_back(atom);
        extend(digits, rest / size);
        digits.pop_back();
      }
    }
  };
  extend({}, dims.front());
}

// The index that combines these atoms, from major to minor.
Affine index_of(const std::vector<int>& atoms, const std::vector<int64_t>& sizes) {
  Affine index;
  int64_t stride = 1;
  for (size_t i = atoms.size(); i-- > 0;) {
    index = affine_sum(index, affine_product(affine_atom(atoms[i]), stride));
    stride *= sizes[static_cast<size_t>(atoms[i])];
  }
  return index;
}

// Whether a dimension of this size may hold the keys and further columns before or after them, such as sinks.
bool has_more_columns(const Plane& plane, int64_t size) {
  constexpr int64_t kMostColumns = 64;
  const int64_t more = size - plane.sizes[kKeyAtom];
  return more > 0 && more <= kMostColumns;
}

// The indices with which a value may have one element for each place of the plane or for each row. A value may also
// have further columns before or after the keys.
std::vector<std::vector<Index>> possible_indices(const Plane& plane, const Probabilities& probabilities,
                                                 const Softmax* softmax, mlir::Value value) {
  const std::vector<int> row = row_atoms(plane, probabilities);
  std::vector<int> all = row;
  if (plane.sizes[kKeyAtom] != 1) {
    all.insert(all.begin(), probabilities.key_digits.begin(), probabilities.key_digits.end());
  }
  std::vector<int> with_sinks = row;
  if (softmax != nullptr && softmax->sink_atoms.size() == 1 && softmax->sink_atoms[0] >= 0) {
    with_sinks.push_back(softmax->sink_atoms[0]);
  }
  std::vector<std::vector<Index>> possible;
  const auto add = [&](llvm::ArrayRef<int64_t> dims, const std::vector<int>& atoms) {
    std::vector<std::vector<int>> current;
    std::vector<std::vector<std::vector<int>>> assignments;
    assign_atoms(dims, atoms, plane.sizes, current, assignments);
    for (const auto& assignment : assignments) {
      possible.push_back(indices_of({.value = value, .dims = assignment}, plane.sizes));
      for (Index& index : possible.back()) {
        index.affine = plane.evaluator->with_digits_joined(std::move(index.affine));
      }
    }
  };
  const llvm::ArrayRef<int64_t> dims = shape(value);
  add(dims, all);
  add(dims, row);
  if (!plane.divided.empty()) {  // a row's sum that is broadcast to the output
    std::vector<int> with_depth = row;
    llvm::append_range(with_depth, plane.divided_depth);
    add(dims, with_depth);
  }
  if (with_sinks.size() != row.size()) {
    add(dims, with_sinks);
  }
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!has_more_columns(plane, dims[d])) {
      continue;
    }
    const int64_t more = dims[d] - plane.sizes[kKeyAtom];
    llvm::SmallVector<int64_t> keys(dims);
    keys[d] = plane.sizes[kKeyAtom];
    const size_t first = possible.size();
    add(keys, all);
    for (size_t i = possible.size(); i-- > first;) {
      std::vector<Index> behind = possible[i];
      behind[d].affine.constant += more;
      possible.push_back(std::move(behind));
    }
  }
  return possible;
}

// Those of a broadcast that keep the indices of its operand. Attention with many dimensions, as over the frames, rows
// and columns of a video, has too many other ways to try them all.
std::vector<std::vector<Index>> indices_of_broadcast(const Plane& plane, const Probabilities& probabilities,
                                                     mlir::Operation* broadcast, const std::vector<Index>& known) {
  const mlir::Value value = broadcast->getResult(0);
  std::vector<std::optional<Index>> given(shape(value).size());
  for (const auto [d, to] : llvm::enumerate(broadcast_dims(broadcast))) {
    if (shape(broadcast->getOperand(0))[d] == shape(value)[static_cast<size_t>(to)]) {
      given[static_cast<size_t>(to)] = known[d];
    }
  }
  std::vector<int> atoms = row_atoms(plane, probabilities);
  llvm::append_range(atoms, probabilities.key_digits);
  std::erase_if(atoms, [&](int atom) {
    const bool is_key = llvm::is_contained(probabilities.key_digits, atom);
    return llvm::any_of(known, [&](const Index& index) {
      return is_key ? plane.evaluator->runs_over_keys(index.affine)
                    : llvm::any_of(index.affine.terms, [&](const auto& term) { return term.first == atom; });
    });
  });
  llvm::SmallVector<int64_t> dims;
  for (const auto [d, index] : llvm::enumerate(given)) {
    if (!index) {
      dims.push_back(shape(value)[d]);
    }
  }
  std::vector<std::vector<int>> current;
  std::vector<std::vector<std::vector<int>>> assignments;
  assign_atoms(dims, atoms, plane.sizes, current, assignments);
  std::vector<std::vector<Index>> possible;
  for (const auto& assignment : assignments) {
    auto next = assignment.begin();
    std::vector<Index>& indices = possible.emplace_back();
    for (const auto& index : given) {
      indices.push_back(index ? *index
                              : Index{.affine = plane.evaluator->with_digits_joined(index_of(*next++, plane.sizes))});
    }
  }
  return possible;
}

// Whether the result has no remaining use, directly or indirectly, because it was rearranged.
bool is_dead(mlir::Operation* op) {
  constexpr size_t kMost = 16;
  llvm::SmallVector<mlir::Operation*> all = {op};
  for (size_t i = 0; i < all.size(); ++i) {
    if (!is_removable(all[i]) || all.size() > kMost) {
      return false;
    }
    all.append(all[i]->user_begin(), all[i]->user_end());
  }
  return true;
}

// Follows the uses of the scores.
class UseReader {
 public:
  // given: what follows from these values alone does not count.
  UseReader(Plane& plane, const Probabilities& probabilities, const Softmax* softmax,
            llvm::ArrayRef<mlir::Operation*> given = {})
      : plane_(plane), probabilities_(probabilities), softmax_(softmax), given_(given) {}

  ScoreUses read();

 private:
  bool read_user(mlir::Operation* user, mlir::Operation* operand);

  Plane& plane_;
  const Probabilities& probabilities_;
  const Softmax* softmax_;
  llvm::ArrayRef<mlir::Operation*> given_;
  ScoreUses uses_;
};

ScoreUses UseReader::read() {
  uses_.values[plane_.pair.first] = {
      .indices = plane_.evaluator->score_indices(),
      .formula = plane_.evaluator->evaluate(plane_.pair.first->getResult(0), plane_.evaluator->score_indices())};
  std::vector<mlir::Operation*> stack{plane_.pair.first};
  while (!stack.empty()) {
    mlir::Operation* op = stack.back();
    stack.pop_back();
    const bool is_given = llvm::is_contained(given_, op);  // it may be there in other shapes, too
    for (mlir::OpOperand& use : op->getUses()) {
      mlir::Operation* user = use.getOwner();
      if (plane_.is_output(user) || is_dead(user) || (is_given && !llvm::is_contained(given_, user))) {
        continue;
      }
      // A product that sums the scores over more than the keys may be the gradient of the values: the gradient of a
      // loss that sums the output is a constant.
      const bool is_sum = side_summed_by_product(user).has_value();
      if (uses_.values.contains(user) || uses_.ends.contains(user)) {
        continue;
      }
      if ((!is_product(user) || is_sum) && read_user(user, op)) {
        stack.push_back(user);
      } else if (is_product(user)) {
        uses_.ends.erase(user);
        uses_.exits.push_back({.product = user,
                               .side = use.getOperandNumber(),
                               .plane_indices = uses_.values[op].indices,
                               .formula = uses_.values[op].formula});
      }
    }
  }
  return std::move(uses_);
}

bool UseReader::read_user(mlir::Operation* user, mlir::Operation* operand) {
  // These reasons are worded for operations between the two products.
  constexpr Reason kOfOperationsBetween[] = {Reason::kProductBetween, Reason::kReducesOverMore, Reason::kNotUnderstood,
                                             Reason::kComputesInF64};
  const auto end = [&](std::optional<Refusal> why) {
    if (why && llvm::is_contained(kOfOperationsBetween, why->reason)) {
      why.reset();
    }
    const std::string name = user->getName().getStringRef().str();
    const std::string place = describe(user->getLoc());
    uses_.ends[user] =
        why ? refuse<Reason::kReachesAnd>(name, place, why->text) : refuse<Reason::kReaches>(name, place);
    return false;
  };
  if (!is_removable(user) || user->getBlock() != plane_.pair.first->getBlock() || user->getNumResults() != 1 ||
      !static_tensor(user->getResult(0))) {
    return end({});
  }
  const mlir::Value value = user->getResult(0);
  std::vector<std::vector<Index>> tries;
  if (shape(value) == shape(operand->getResult(0)) && kind(user) != OpKind::kTranspose) {
    tries.push_back(uses_.values[operand].indices);
  } else if (kind(user) == OpKind::kTranspose) {
    tries.emplace_back();
    for (const int64_t from : permutation(user)) {
      tries.back().push_back(uses_.values[operand].indices[static_cast<size_t>(from)]);
    }
  } else if (kind(user) == OpKind::kBroadcastInDim) {
    tries = indices_of_broadcast(plane_, probabilities_, user, uses_.values[operand].indices);
  }
  // A number of the row that is broadcast to keys and sinks has it for all columns: its indices do not show yet whether
  // the sinks are the first ones.
  if (tries.empty() || kind(user) == OpKind::kBroadcastInDim ||
      llvm::any_of(shape(value), [&](int64_t size) { return has_more_columns(plane_, size); })) {
    llvm::append_range(tries, possible_indices(plane_, probabilities_, softmax_, value));
  }
  std::optional<Refusal> refusal;
  for (const std::vector<Index>& indices : tries) {
    const SymId formula = plane_.evaluator->try_evaluate(value, indices, refusal);
    if (formula != kNoSym && plane_.arena[formula].has_score) {
      uses_.values[user] = {.indices = indices, .formula = formula};
      return true;
    }
  }
  return end(refusal);
}

}  // namespace

ScoreUses read_score_uses(Plane& plane, const Probabilities& probabilities, const Softmax* softmax) {
  ScoreUses uses = UseReader(plane, probabilities, softmax).read();
  if (softmax == nullptr) {
    return uses;
  }
  for (const auto& [op, value] : uses.values) {
    if (!plane.arena.depends_on(value.formula, kKeyAtom) && is_log_sum_exp(plane.arena, value.formula, *softmax)) {
      uses.log_sum_exps.push_back(op);
    }
  }
  llvm::sort(uses.log_sum_exps,
             [](mlir::Operation* one, mlir::Operation* other) { return one->isBeforeInBlock(other); });
  if (!uses.log_sum_exps.empty() && !uses.ends.empty()) {
    std::vector<mlir::Operation*> given = uses.log_sum_exps;
    llvm::append_range(given, plane.outputs());
    plane.depends = DependsOn(plane.pair.first, std::move(given));
    std::vector<mlir::Operation*> log_sum_exps = std::move(uses.log_sum_exps);
    uses = UseReader(plane, probabilities, softmax, log_sum_exps).read();
    uses.log_sum_exps = std::move(log_sum_exps);
  }
  return uses;
}

namespace {

// The indices of the dimensions that a product sums, which run through `depth`, apart from those of one element.
// Nothing if they do not.
std::optional<std::vector<Affine>> summed_indices(mlir::Operation* product, const std::vector<int>& depth,
                                                  const std::vector<int64_t>& sizes) {
  const auto of_operand = shape(product->getOperand(0));
  std::vector<Affine> indices;
  size_t next = 0;
  for (const int64_t d : operand_dims(product, 0).contract) {
    const int64_t size = of_operand[static_cast<size_t>(d)];
    if (size == 1) {
      indices.emplace_back();
    } else if (next < depth.size() && sizes[static_cast<size_t>(depth[next])] == size) {
      indices.push_back(affine_atom(depth[next++]));
    } else {
      return std::nullopt;
    }
  }
  return next == depth.size() ? std::optional(std::move(indices)) : std::nullopt;
}

}  // namespace

std::vector<GradientProduct> gradient_products(const Plane& plane, const std::vector<int>& value_depth) {
  std::vector<GradientProduct> found;
  for (const Evaluator::Place& place : plane.evaluator->places()) {
    mlir::Operation* product = place.value.getDefiningOp();
    if (!is_product(product) || product == plane.pair.first || plane.arena[place.formula].kind != SymKind::kLoad) {
      continue;
    }
    const std::vector<Affine> of_place = affine_of(place.indices);
    const bool is_of_plane = std::any_of(of_place.begin(), of_place.end(),
                                         [&](const Affine& i) { return plane.evaluator->runs_over_keys(i); });
    const auto depth = summed_indices(product, value_depth, plane.sizes);
    if (!is_of_plane || !depth) {
      continue;
    }
    GradientProduct candidate{.product = product, .formula = place.formula};
    const auto batch_end = of_place.begin() + static_cast<std::ptrdiff_t>(operand_dims(product, 0).batch.size());
    auto free = batch_end;
    for (unsigned side = 0; side < 2; ++side) {
      const OperandDims own = operand_dims(product, side);
      const auto free_end = free + static_cast<std::ptrdiff_t>(own.free.size());
      candidate.indices[side] = operand_indices(own, {of_place.begin(), batch_end}, *depth, {free, free_end});
      free = free_end;
    }
    found.push_back(std::move(candidate));
  }
  return found;
}

std::vector<Index> indices_of(const PlacedTensor& tensor, const std::vector<int64_t>& sizes) {
  std::vector<Index> indices;
  for (const std::vector<int>& digits : tensor.dims) {
    indices.push_back({.affine = index_of(digits, sizes)});
  }
  return indices;
}

}  // namespace flashlift::stablehlo
