// What leaves the score plane of an attention beside its output: products with queries, keys or the output's gradient,
// and sums over some of the plane's dimensions.
#include <algorithm>

#include "stablehlo/lift/attempt.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// All ways to run through `atoms`, each once, with the dimensions of a tensor: a few, as sizes must fit.
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

// The index that runs through these atoms, major to minor.
Affine index_of(const std::vector<int>& atoms, const std::vector<int64_t>& sizes) {
  Affine index;
  int64_t stride = 1;
  for (size_t i = atoms.size(); i-- > 0;) {
    index = affine_sum(index, affine_product(affine_atom(atoms[i]), stride));
    stride *= sizes[static_cast<size_t>(atoms[i])];
  }
  return index;
}

// Batch dimensions, then the free ones of the left operand, then those of the right one.
std::vector<Affine> result_indices(mlir::Operation* product, const std::vector<Affine>& lhs,
                                   const std::vector<Affine>& rhs) {
  const OperandDims left = operand_dims(product, 0);
  const OperandDims right = operand_dims(product, 1);
  std::vector<Affine> result;
  for (const int64_t d : left.batch) {
    result.push_back(lhs[static_cast<size_t>(d)]);
  }
  for (const int64_t d : left.free) {
    result.push_back(lhs[static_cast<size_t>(d)]);
  }
  for (const int64_t d : right.free) {
    result.push_back(rhs[static_cast<size_t>(d)]);
  }
  return result;
}

bool is_addition_from_zero(const Reduction& how) {
  return how.reducer == Reducer::kAdd && how.inputs.size() == 1 && splat(how.inits[0]) == 0.0;
}

std::vector<Index> indices_of(const PlacedTensor& tensor, const std::vector<int64_t>& sizes) {
  std::vector<Index> indices;
  for (const std::vector<int>& digits : tensor.dims) {
    indices.push_back({.affine = index_of(digits, sizes)});
  }
  return indices;
}

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

}  // namespace

std::optional<std::vector<Affine>> other_indices(mlir::Operation* product, unsigned side,
                                                 const std::vector<Affine>& indices, const std::vector<int>& depth,
                                                 const std::vector<int64_t>& sizes) {
  const OperandDims mine = operand_dims(product, side);
  const OperandDims other = operand_dims(product, 1 - side);
  const auto other_shape = shape(product->getOperand(1 - side));
  std::vector<Affine> result(other_shape.size());
  for (size_t i = 0; i < mine.batch.size(); ++i) {
    result[static_cast<size_t>(other.batch[i])] = indices[static_cast<size_t>(mine.batch[i])];
  }
  for (size_t i = 0; i < mine.contract.size(); ++i) {
    result[static_cast<size_t>(other.contract[i])] = indices[static_cast<size_t>(mine.contract[i])];
  }
  size_t next = 0;
  for (const int64_t d : other.free) {
    const int64_t size = other_shape[static_cast<size_t>(d)];
    if (size == 1) {
      continue;
    }
    if (next == depth.size() || sizes[static_cast<size_t>(depth[next])] != size) {
      return std::nullopt;
    }
    result[static_cast<size_t>(d)] = affine_atom(depth[next++]);
  }
  return next == depth.size() ? std::optional(result) : std::nullopt;
}

// --- Reading ---

// Reads everything that the scores flow into, as far as each element belongs to one place of the score plane, or to one
// of its rows. What is computed from the row log-sum-exp is computed from what the call gives, as it is from the
// output.
void Attempt::read_plane() {
  read_users();
  if (softmax_.score == kNoSym) {
    return;
  }
  for (const auto& [op, plane] : plane_) {
    if (!arena_.depends_on(plane.formula, kKeyAtom) && is_log_sum_exp(arena_, plane.formula, softmax_)) {
      log_sum_exps_.push_back(op);
    }
  }
  if (!log_sum_exps_.empty() && !ends_.empty()) {
    std::vector<mlir::Operation*> given = log_sum_exps_;
    if (options_.gradient == GradientUse::kBesideOutput) {
      given.push_back(second_);
    }
    depends_ = DependsOn(first_, std::move(given));
    plane_.clear();
    ends_.clear();
    exits_.clear();
    read_users();
  }
}

void Attempt::read_users() {
  plane_[first_] = {.indices = evaluator_->score_indices(),
                    .formula = evaluator_->evaluate(first_->getResult(0), evaluator_->score_indices())};
  std::vector<mlir::Operation*> stack{first_};
  while (!stack.empty()) {
    mlir::Operation* op = stack.back();
    stack.pop_back();
    for (mlir::OpOperand& use : op->getUses()) {
      mlir::Operation* user = use.getOwner();
      if (is_output(user)) {
        continue;
      }
      if (is_product(user)) {
        exits_.push_back({.product = user,
                          .side = use.getOperandNumber(),
                          .plane_indices = plane_[op].indices,
                          .formula = plane_[op].formula});
      } else if (!plane_.contains(user) && !ends_.contains(user) && read_user(user, op)) {
        stack.push_back(user);
      }
    }
  }
}

bool Attempt::is_output(mlir::Operation* op) const {
  return op == second_ && options_.gradient == GradientUse::kBesideOutput;
}

bool Attempt::read_user(mlir::Operation* user, mlir::Operation* operand) {
  const auto end = [&](const std::optional<Refusal>& why) {
    const std::string name = user->getName().getStringRef().str();
    const std::string place = describe(user->getLoc());
    ends_[user] = why ? refuse<Reason::kReachesAnd>(name, place, why->text) : refuse<Reason::kReaches>(name, place);
    return false;
  };
  if (!is_removable(user) || user->getBlock() != first_->getBlock() || user->getNumResults() != 1 ||
      !static_tensor(user->getResult(0))) {
    return end({});
  }
  const mlir::Value value = user->getResult(0);
  std::vector<std::vector<Index>> tries;
  if (shape(value) == shape(operand->getResult(0)) && kind(user) != OpKind::kTranspose) {
    tries.push_back(plane_[operand].indices);
  } else if (kind(user) == OpKind::kTranspose) {
    tries.emplace_back();
    for (const int64_t from : permutation(user)) {
      tries.back().push_back(plane_[operand].indices[static_cast<size_t>(from)]);
    }
  } else {
    tries = possible_indices(value);
  }
  std::optional<Refusal> refusal;
  for (const std::vector<Index>& indices : tries) {
    const SymId formula = evaluator_->try_evaluate(value, indices, refusal);
    if (formula != kNoSym && arena_[formula].has_score) {
      plane_[user] = {.indices = indices, .formula = formula};
      return true;
    }
  }
  return end(refusal);
}

// The ways in which a value may have an element for each place of the plane, or for each row; or, with further columns
// beside the keys, for each place of the plane and more.
std::vector<std::vector<Index>> Attempt::possible_indices(mlir::Value value) const {
  const std::vector<int> row = row_atoms();
  std::vector<int> all = row;
  if (sizes_[kKeyAtom] != 1) {
    all.insert(all.begin(), kKeyAtom);
  }
  std::vector<int> with_sinks = row;
  if (softmax_.sink_atoms.size() == 1 && softmax_.sink_atoms[0] >= 0) {
    with_sinks.push_back(softmax_.sink_atoms[0]);
  }
  std::vector<std::vector<Index>> possible;
  const auto add = [&](llvm::ArrayRef<int64_t> dims, const std::vector<int>& atoms) {
    std::vector<std::vector<int>> current;
    std::vector<std::vector<std::vector<int>>> assignments;
    assign_atoms(dims, atoms, sizes_, current, assignments);
    for (const auto& assignment : assignments) {
      possible.push_back(indices_of({.value = value, .dims = assignment}, sizes_));
    }
  };
  const llvm::ArrayRef<int64_t> dims = shape(value);
  add(dims, all);
  add(dims, row);
  if (with_sinks.size() != row.size()) {
    add(dims, with_sinks);
  }
  constexpr int64_t kMostColumns = 64;
  for (size_t d = 0; d < dims.size(); ++d) {
    const int64_t more = dims[d] - sizes_[kKeyAtom];
    if (more <= 0 || more > kMostColumns) {
      continue;
    }
    llvm::SmallVector<int64_t> keys(dims);
    keys[d] = sizes_[kKeyAtom];
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

std::vector<int> Attempt::row_atoms() const {
  std::vector<int> atoms;
  for (const Index& index : probability_indices_) {
    for (const auto& term : index.affine.terms) {
      if (!evaluator_->runs_over_keys(affine_atom(term.first)) && sizes_[static_cast<size_t>(term.first)] != 1) {
        atoms.push_back(term.first);
      }
    }
  }
  return atoms;
}

// The products that formulas of the plane load, with the indices of their operands.
std::vector<Attempt::GradientProduct> Attempt::gradient_products() const {
  std::vector<GradientProduct> found;
  for (const Evaluator::Place& place : evaluator_->places()) {
    mlir::Operation* product = place.value.getDefiningOp();
    if (!is_product(product) || product == first_ || arena_[place.formula].kind != SymKind::kLoad) {
      continue;
    }
    const std::vector<Affine> plane = affine_of(place.indices);
    const bool is_of_plane =
        std::any_of(plane.begin(), plane.end(), [&](const Affine& i) { return evaluator_->runs_over_keys(i); });
    if (!is_of_plane || operand_dims(product, 0).contract.size() != value_depth_.size()) {
      continue;
    }
    GradientProduct candidate{.product = product, .formula = place.formula};
    size_t next = operand_dims(product, 0).batch.size();
    for (unsigned side = 0; side < 2; ++side) {
      const OperandDims own = operand_dims(product, side);
      std::vector<Affine>& indices = candidate.indices[side];
      indices.resize(shape(product->getOperand(side)).size());
      for (size_t i = 0; i < own.batch.size(); ++i) {
        indices[static_cast<size_t>(own.batch[i])] = plane[i];
      }
      for (const int64_t d : own.free) {
        indices[static_cast<size_t>(d)] = plane[next++];
      }
      for (size_t i = 0; i < own.contract.size(); ++i) {
        indices[static_cast<size_t>(own.contract[i])] = affine_atom(value_depth_[i]);
      }
    }
    found.push_back(std::move(candidate));
  }
  return found;
}

// --- Products ---

Proof Attempt::place_exit(Exit& exit) {
  const std::vector<Affine> indices = affine_of(exit.plane_indices);
  const OperandDims dims = operand_dims(exit.product, exit.side);
  exit.sums_over_keys = std::any_of(dims.contract.begin(), dims.contract.end(), [&](int64_t d) {
    return evaluator_->runs_over_keys(indices[static_cast<size_t>(d)]);
  });
  bool is_summed_otherwise = false;
  for (const std::vector<int>* depth : {&depth_, &value_depth_}) {
    const auto other = other_indices(exit.product, exit.side, indices, *depth, sizes_);
    if (!other) {
      continue;
    }
    // Depths of queries and of values may be of one size: the operand tells which it is.
    if (depth == &depth_) {
      const bool is_key = is_same_tensor(exit.other(), *other, k_operand_, k_indices_);
      const bool is_query = is_same_tensor(exit.other(), *other, q_operand_, q_indices_);
      if (exit.sums_over_keys ? !is_key : !is_query) {
        continue;
      }
    }
    auto result = place_tensor(
        exit.product->getResult(0),
        exit.side == 0 ? result_indices(exit.product, indices, *other) : result_indices(exit.product, *other, indices),
        sizes_);
    if (!result) {
      continue;
    }
    const std::vector<int> wanted = exit.sums_over_keys ? joined({roles_.batch, roles_.heads(), roles_.query, *depth})
                                                        : joined({roles_.batch, roles_.kv_head, roles_.key, *depth});
    // Batches and heads that share the tensor may have been summed over, as they are where the product lacks them.
    std::vector<int> shared;
    const std::vector<int> found = sorted(result->order());
    std::set_difference(wanted.begin(), wanted.end(), found.begin(), found.end(), std::back_inserter(shared));
    const std::vector<int> heads = exit.sums_over_keys ? roles_.heads() : roles_.kv_head;
    if (found.size() + shared.size() != wanted.size() || llvm::any_of(shared, [&](int atom) {
          return !llvm::is_contained(roles_.batch, atom) && !llvm::is_contained(heads, atom);
        })) {
      is_summed_otherwise = true;
      continue;
    }
    exit.other_indices = *other;
    exit.result = std::move(*result);
    exit.shared = std::move(shared);
    exit.is_of_values = depth == &value_depth_;
    return {};
  }
  const std::string place = describe(exit.product->getLoc());
  return is_summed_otherwise ? refuse<Reason::kProductNotSummed>(place) : refuse<Reason::kProductNoGradient>(place);
}

// Keeps the products that may be gradients by queries, keys or values. Others read a gradient as anything else may.
void Attempt::place_exits() {
  std::vector<Exit> placed;
  for (Exit& exit : exits_) {
    Proof status = place_exit(exit);
    if (status.ok() && exit.is_of_values && d_out_operand_ &&
        !is_same_tensor(exit.other(), exit.other_indices, d_out_operand_, d_out_indices_)) {
      status = refuse<Reason::kProductWithOther>(describe(exit.product->getLoc()));
    }
    if (status.ok()) {
      placed.push_back(std::move(exit));
    } else {
      ends_[exit.product] = status.error();
    }
  }
  std::erase_if(placed, [&](const Exit& exit) { return ends_.contains(exit.product); });
  exits_ = std::move(placed);
}

// --- Sums ---

// Whether everything that follows from the operation's result ends in the output or in products that were placed.
bool Attempt::is_inner(mlir::Operation* op) {
  if (is_output(op) || (is_product(op) && op != first_ && !ends_.contains(op))) {
    return true;
  }
  if (ends_.contains(op)) {
    return false;
  }
  if (const auto found = inner_.find(op); found != inner_.end()) {
    return found->second;
  }
  const bool inner = llvm::all_of(op->getUsers(), [&](mlir::Operation* user) { return is_inner(user); });
  inner_[op] = inner;
  return inner;
}

// All that follows from a value of the plane must end in a product that was placed, or in a gradient.
Proof Attempt::leave(mlir::Operation* op) {
  if (is_inner(op)) {
    return {};
  }
  if (const auto found = left_.find(op); found != left_.end()) {
    return found->second;
  }
  if (leave_as_log_sum_exp(op)) {
    return {};
  }
  const PlaneValue& plane = plane_[op];
  const auto tensor = place_tensor(op->getResult(0), affine_of(plane.indices), sizes_);
  const PlaneSum itself{.tensor = tensor.value_or(PlacedTensor{}), .formula = plane.formula};
  const auto further = [&]() -> Proof {
    for (mlir::Operation* user : op->getUsers()) {
      if (is_inner(user)) {
        continue;
      }
      Proof left = plane_.contains(user) ? leave(user) : leave_as_sum(itself, user);
      if (!left.ok() && plane_.contains(user) && kind(user) == OpKind::kReduce) {  // it may be of rows of a tensor
        left = leave_as_sum(itself, user).ok() ? Proof() : left;
      }
      FLASHLIFT_RETURN_IF_ERROR(left);
    }
    return {};
  };
  const Proof status = tensor ? leave_by(itself, further) : further();
  left_[op] = status;
  return status;
}

// The call gives it, whatever it is used for; but for what is computed from it before it leaves.
bool Attempt::leave_as_log_sum_exp(mlir::Operation* op) {
  if (!lifted_.lse && llvm::is_contained(log_sum_exps_, op)) {
    static_cast<void>(find_log_sum_exp(op->getResult(0)));
  }
  return lifted_.lse && lifted_.lse->replaced == op->getResult(0);
}

Proof Attempt::leave_as_sum(const PlaneSum& sum, mlir::Operation* user) {
  if (sum.tensor.value == nullptr) {
    return refuse<Reason::kLeavesElsewhere>(ends_[user].text);
  }
  if (const auto found = left_as_sum_.find(user); found != left_as_sum_.end()) {
    return found->second;
  }
  Proof status;
  if (const auto next = summed_further(sum, user)) {
    status = leave_by(*next, [&]() -> Proof {
      for (mlir::Operation* further : user->getUsers()) {
        FLASHLIFT_RETURN_IF_ERROR(leave_as_sum(*next, further));
      }
      return {};
    });
  } else {
    status = refuse<Reason::kLeavesElsewhere>(
        (ends_.contains(user)
             ? ends_[user]
             : refuse<Reason::kReaches>(user->getName().getStringRef().str(), describe(user->getLoc())))
            .text);
  }
  left_as_sum_[user] = status;
  return status;
}

// A value leaves as the gradient by a term of the score or by the sinks, or all that follows from it does.
Proof Attempt::leave_by(const PlaneSum& sum, const std::function<Proof()>& further) {
  const bool depends_on_keys = arena_.depends_on(sum.formula, kKeyAtom) || sizes_[kKeyAtom] == 1;
  if (gradient_formula_ != kNoSym && !depends_on_keys && is_sinks_gradient(sum)) {
    sum_exits_.push_back({.sum = sum, .term = std::nullopt});
    return {};
  }
  if (gradient_formula_ != kNoSym && depends_on_keys) {
    if (auto term = term_with_gradient(sum)) {
      sum_exits_.push_back({.sum = sum, .term = std::move(term)});
      return {};
    }
  }
  return further();
}

// The sum once it went through an operation that sums over dimensions, or that changes all that is summed by what does
// not depend on the dimensions that are summed already.
std::optional<Attempt::PlaneSum> Attempt::summed_further(const PlaneSum& sum, mlir::Operation* user) {
  if (!is_removable(user) || user->getBlock() != first_->getBlock() || user->getNumResults() != 1 ||
      !static_tensor(user->getResult(0))) {
    return std::nullopt;
  }
  PlaneSum next{.tensor = {.value = user->getResult(0), .dims = {}}, .formula = sum.formula};
  const auto& dims = sum.tensor.dims;
  switch (kind(user)) {
    case OpKind::kReduce: {
      const auto how = reduction(user);
      if (!how || !is_addition_from_zero(*how)) {
        return std::nullopt;
      }
      for (size_t d = 0; d < dims.size(); ++d) {
        if (!llvm::is_contained(how->dims, static_cast<int64_t>(d))) {
          next.tensor.dims.push_back(dims[d]);
        }
      }
      return next;
    }
    case OpKind::kBroadcastInDim: {  // of dimensions of size 1 alone
      next.tensor.dims.resize(shape(next.tensor.value).size());
      for (const auto [d, to] : llvm::enumerate(broadcast_dims(user))) {
        next.tensor.dims[static_cast<size_t>(to)] = dims[d];
      }
      return static_tensor(next.tensor.value).getNumElements() == static_tensor(sum.tensor.value).getNumElements()
                 ? std::optional(next)
                 : std::nullopt;
    }
    case OpKind::kNegate:
      next.tensor.dims = dims;
      next.formula = arena_.op(Op::k_neg, {sum.formula});
      return next;
    case OpKind::kMultiply:
    case OpKind::kDivide: {
      const bool is_first = user->getOperand(0) == sum.tensor.value;
      if (kind(user) == OpKind::kDivide && !is_first) {
        return std::nullopt;
      }
      std::optional<Refusal> refusal;
      const SymId factor =
          evaluator_->try_evaluate(user->getOperand(is_first ? 1 : 0), indices_of(sum.tensor, sizes_), refusal);
      if (factor == kNoSym || arena_[factor].has_score) {
        return std::nullopt;
      }
      next.tensor.dims = dims;
      next.formula = arena_.op(kind(user) == OpKind::kDivide ? Op::k_div : Op::k_mul, {sum.formula, factor});
      return next;
    }
    default: {
      auto followed = follow_use(sum.tensor, user, sizes_, half_);
      if (!followed) {
        return std::nullopt;
      }
      next.tensor = *std::move(followed);
      return next;
    }
  }
}

// Each row has its share of the gradient by the sinks.
bool Attempt::is_sinks_gradient(const PlaneSum& sum) {
  if (softmax_.sinks.size() != 1 || arena_.is_constant(softmax_.sinks[0])) {
    return false;
  }
  std::vector<int> wanted = roles_.heads();
  if (softmax_.sink_atoms[0] >= 0) {
    wanted.push_back(softmax_.sink_atoms[0]);
  }
  return sorted(sum.tensor.order()) == sorted(wanted) && check().is_sinks_gradient(sum.formula).ok();
}

// The term of the score by which the sum is the gradient.
std::optional<Attempt::Term> Attempt::term_with_gradient(const PlaneSum& sum) {
  const std::vector<int> wanted = sorted(sum.tensor.order());
  std::vector<SymId> tried;
  for (const Evaluator::Place& place : evaluator_->places()) {
    const Sym& sym = arena_[place.formula];
    const bool is_computed = std::any_of(place.indices.begin(), place.indices.end(),
                                         [](const Index& index) { return index.general != kNoSym; });
    const auto type = dtype(place.value.getType());
    if (sym.has_score || sym.type != Type::kF32 || sym.kind == SymKind::kConstant || is_computed || !type ||
        !is_float(*type) || llvm::is_contained(tried, place.formula)) {
      continue;
    }
    const auto tensor = place_tensor(place.value, affine_of(place.indices), evaluator_->atom_sizes());
    if (!tensor || sorted(tensor->order()) != wanted) {
      continue;
    }
    // A term that is the same along a dimension was made from a smaller one, whose gradient is wanted.
    if (std::any_of(wanted.begin(), wanted.end(), [&](int atom) { return !arena_.depends_on(place.formula, atom); })) {
      continue;
    }
    tried.push_back(place.formula);
    const SymId shifted = score_with_shift(arena_, softmax_, place.formula);
    if (shifted != softmax_.score && check().is_gradient(sum.formula, shifted).ok()) {
      return Term{.formula = place.formula, .tensor = *tensor};
    }
  }
  return std::nullopt;
}

}  // namespace flashlift::stablehlo
