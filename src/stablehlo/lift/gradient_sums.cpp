#include "stablehlo/lift/gradient_sums.h"

#include <algorithm>

#include "stablehlo/lift/products.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

constexpr int kMostSteps = 12;  // between sums and values of the plane

bool is_addition_from_zero(const Reduction& how) {
  return how.reducer == Reducer::kAdd && how.inputs.size() == 1 && splat(how.inits[0]) == 0.0;
}

std::vector<int> sorted(std::vector<int> atoms) {
  std::sort(atoms.begin(), atoms.end());
  return atoms;
}

}  // namespace

Outcome<std::vector<SumExit>> GradientSums::find() {
  const auto find = [&]() -> Proof {
    FLASHLIFT_RETURN_IF_ERROR(leave(plane_.pair.first));
    leave_out_steps();
    return check_terms();
  };
  Proof found = find();
  if (!found.ok() && went_further_) {
    may_go_further_ = false;
    sums_.clear();
    left_.clear();
    left_as_sum_.clear();
    found = find();
  }
  if (!found.ok()) {
    return found.error();
  }
  return std::move(sums_);
}

// Leaves out gradients that only lead to other ones: where the scores read x and f(x), the gradient by f(x) is a step
// on the way to that by x.
void GradientSums::leave_out_steps() {
  const auto defines_sum = [&](mlir::Operation* op) {
    return op->getNumResults() == 1 &&
           llvm::any_of(sums_, [&](const SumExit& exit) { return exit.sum.tensor.value == op->getResult(0); });
  };
  // A gradient may flow through the rest of a backward pass: what is far away is not followed. Each operation is read
  // once, however many ways lead to it.
  llvm::DenseMap<mlir::Operation*, bool> known;
  const std::function<bool(mlir::Value, int)> leads_to_sums = [&](mlir::Value value, int steps) {
    return steps < kMostSteps &&
           llvm::all_of(
               value.getUsers(),
               [&](mlir::Operation* user) {
                 if (const auto found = known.find(user); found != known.end()) {
                   return found->second;
                 }
                 const bool leads =
                     is_inner(user) || (is_removable(user) &&
                                        (defines_sum(user) || llvm::all_of(user->getResults(), [&](mlir::Value result) {
                                           return leads_to_sums(result, steps + 1);
                                         })));
                 known[user] = leads;
                 return leads;
               });
  };
  std::vector<SumExit> needed;
  for (const SumExit& exit : sums_) {
    if (!leads_to_sums(exit.sum.tensor.value, 0)) {
      needed.push_back(exit);
    }
  }
  sums_ = std::move(needed);
}

// The gradient by a tensor counts all its uses in the score. The call reads each term as a tensor of its own, and a
// term that contains another one would hide its uses.
Proof GradientSums::check_terms() {
  const SymId zero = plane_.arena.f32(0.0F);
  for (const SumExit& inner : sums_) {
    for (const SumExit& outer : sums_) {
      if (inner.term && outer.term && inner.term->formula != outer.term->formula &&
          plane_.arena.replace(outer.term->formula, inner.term->formula, zero) != outer.term->formula) {
        return refuse<Reason::kNestedTerms>(describe(mlir::Value(outer.sum.tensor.value).getLoc()),
                                            describe(mlir::Value(inner.sum.tensor.value).getLoc()));
      }
    }
  }
  return {};
}

// Whether everything that depends on the operation's result ends in the output or in placed products.
bool GradientSums::is_inner(mlir::Operation* op) {
  if (uses_.ends.contains(op)) {
    return false;
  }
  if (plane_.is_output(op) || llvm::any_of(uses_.exits, [&](const Exit& exit) { return exit.product == op; })) {
    return true;
  }
  if (const auto found = inner_.find(op); found != inner_.end()) {
    return found->second;
  }
  const bool inner =
      is_removable(op) && llvm::all_of(op->getUsers(), [&](mlir::Operation* user) { return is_inner(user); });
  inner_[op] = inner;
  return inner;
}

// The refusal for a value that leaves the plane at this operation.
Refusal GradientSums::reaches(mlir::Operation* user) const {
  const auto found = uses_.ends.find(user);
  return found != uses_.ends.end()
             ? found->second
             : refuse<Reason::kReaches>(user->getName().getStringRef().str(), describe(user->getLoc()));
}

// Everything that depends on a value of the plane must end in a placed product, or in a gradient.
Proof GradientSums::leave(mlir::Operation* op) {
  if (is_inner(op)) {
    return {};
  }
  if (const auto found = left_.find(op); found != left_.end()) {
    return found->second;
  }
  if (leave_as_log_sum_exp(op)) {
    return {};
  }
  const PlaneSum itself = sum_at(op);
  const auto further = [&]() -> Proof {
    for (mlir::Operation* user : op->getUsers()) {
      if (is_inner(user)) {
        continue;
      }
      Proof left = uses_.values.contains(user) ? leave(user) : leave_as_sum(itself, user);
      if (!left.ok() && uses_.values.contains(user) &&
          kind(user) == OpKind::kReduce) {  // it may reduce a tensor of rows
        left = leave_as_sum(itself, user).ok() ? Proof() : left;
      }
      if (!left.ok()) {
        return left;
      }
    }
    return {};
  };
  const Proof status = itself.tensor.value != nullptr ? leave_by(itself, further) : further();
  left_[op] = status;
  return status;
}

// A value of the plane as a sum over none of its dimensions; without a tensor if it is no strided part of the plane.
PlaneSum GradientSums::sum_at(mlir::Operation* op) const {
  const PlaneValue& value = uses_.values.at(op);
  auto tensor = place_tensor(op->getResult(0), affine_of(value.indices), plane_.sizes).value_or(PlacedTensor{});
  std::vector<int> atoms = sorted(tensor.order());
  return {.tensor = std::move(tensor), .formula = value.formula, .atoms = std::move(atoms)};
}

// Whether the operation's result is the log-sum-exp, which the call returns for any use. Values computed from it inside
// the plane do not count.
bool GradientSums::leave_as_log_sum_exp(mlir::Operation* op) {
  if (!log_sum_exp_ && llvm::is_contained(uses_.log_sum_exps, op)) {
    if (auto found = find_log_sum_exp(plane_, forward_, op->getResult(0)); found.ok()) {
      log_sum_exp_ = *std::move(found);
    }
  }
  return log_sum_exp_ && log_sum_exp_->view.replaced == op->getResult(0);
}

Proof GradientSums::leave_as_sum(const PlaneSum& sum, mlir::Operation* user) {
  if (sum.tensor.value == nullptr) {
    return refuse<Reason::kLeavesElsewhere>(reaches(user).text);
  }
  if (const auto found = left_as_sum_.find(user); found != left_as_sum_.end()) {
    return found->second;
  }
  Proof status;
  if (const auto next = summed_further(sum, user, kMostSteps)) {
    status = leave_by(*next, [&]() -> Proof {
      for (mlir::Operation* further : user->getUsers()) {
        FLASHLIFT_RETURN_IF_ERROR(leave_as_sum(*next, further));
      }
      return {};
    });
  } else {
    status = refuse<Reason::kLeavesElsewhere>(reaches(user).text);
  }
  left_as_sum_[user] = status;
  return status;
}

// Proves that the value is the gradient of a term of the score or of the sinks, or that everything computed from it is.
Proof GradientSums::leave_by(const PlaneSum& sum, const std::function<Proof()>& further) {
  const bool depends_on_keys = plane_.arena.depends_on(sum.formula, kKeyAtom) || plane_.sizes[kKeyAtom] == 1;
  if (has_d_probability_ && !depends_on_keys && is_sinks_gradient(sum)) {
    sums_.push_back({.sum = sum, .term = std::nullopt});
    return {};
  }
  if (has_d_probability_ && depends_on_keys) {
    if (auto term = term_with_gradient(sum)) {
      if (!may_go_further_ || !is_left_by_further_sums(further)) {
        sums_.push_back({.sum = sum, .term = std::move(term)});
      }
      return {};
    }
  }
  return further();
}

// Whether all that is computed from the gradient by a term are sums of it that are gradients by other terms. The call
// then returns those alone, which are smaller: of a bias, and not of the bias and a mask of each batch together.
bool GradientSums::is_left_by_further_sums(const std::function<Proof()>& further) {
  const size_t before = sums_.size();
  const auto left = left_;
  const auto left_as_sum = left_as_sum_;
  if (further().ok() && sums_.size() > before) {
    went_further_ = true;
    return true;
  }
  sums_.erase(sums_.begin() + static_cast<std::ptrdiff_t>(before), sums_.end());
  left_ = left;
  left_as_sum_ = left_as_sum;
  return false;
}

// The sum that the operation's result is, if it is one: read from the result to the values of the plane, in a few
// steps.
std::optional<PlaneSum> GradientSums::sum_behind(mlir::Operation* op, int steps) {
  if (op == nullptr || steps == 0) {
    return std::nullopt;
  }
  if (const auto found = behind_.find(op); found != behind_.end()) {
    return found->second;
  }
  std::optional<PlaneSum> behind;
  if (uses_.values.contains(op)) {
    PlaneSum sum = sum_at(op);
    if (sum.tensor.value != nullptr) {
      behind = std::move(sum);
    }
  } else {
    for (const mlir::Value operand : op->getOperands()) {
      if (const auto sum =
              plane_.depends(operand.getDefiningOp()) ? sum_behind(operand.getDefiningOp(), steps - 1) : std::nullopt) {
        behind = summed_further(*sum, op, steps - 1);
        break;
      }
    }
  }
  behind_[op] = behind;
  return behind;
}

// The sum or difference of two sums of values that have the same atoms. A number of the row counts once in a sum over
// rows, but once for each key in a sum over the plane.
std::optional<PlaneSum> GradientSums::added(const PlaneSum& sum, mlir::Operation* user, int steps) {
  const bool is_first = user->getOperand(0) == sum.tensor.value;
  const auto other = sum_behind(user->getOperand(is_first ? 1 : 0).getDefiningOp(), steps);
  if (!other || other->tensor.dims != sum.tensor.dims || other->atoms != sum.atoms) {
    return std::nullopt;
  }
  PlaneSum next = sum;
  next.tensor.value = user->getResult(0);
  next.formula = plane_.arena.op(
      kind(user) == OpKind::kAdd ? Op::k_add : Op::k_sub,
      is_first ? std::vector<SymId>{sum.formula, other->formula} : std::vector<SymId>{other->formula, sum.formula});
  return next;
}

// The sum after an operation that sums over further dimensions, that adds another sum over the same ones, or that
// applies something to it that does not depend on the dimensions already summed.
std::optional<PlaneSum> GradientSums::summed_further(const PlaneSum& sum, mlir::Operation* user, int steps) {
  if (!is_removable(user) || user->getBlock() != plane_.pair.first->getBlock() || user->getNumResults() != 1 ||
      !static_tensor(user->getResult(0))) {
    return std::nullopt;
  }
  PlaneSum next{.tensor = {.value = user->getResult(0), .dims = {}}, .formula = sum.formula, .atoms = sum.atoms};
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
    case OpKind::kBroadcastInDim: {  // only if dimensions of size 1 are broadcast
      next.tensor.dims.resize(shape(next.tensor.value).size());
      for (const auto [d, to] : llvm::enumerate(broadcast_dims(user))) {
        next.tensor.dims[static_cast<size_t>(to)] = dims[d];
      }
      return static_tensor(next.tensor.value).getNumElements() == static_tensor(sum.tensor.value).getNumElements()
                 ? std::optional(next)
                 : std::nullopt;
    }
    case OpKind::kAdd:
    case OpKind::kSubtract:
      return added(sum, user, steps);
    case OpKind::kNegate:
      next.tensor.dims = dims;
      next.formula = plane_.arena.op(Op::k_neg, {sum.formula});
      return next;
    case OpKind::kMultiply:
    case OpKind::kDivide: {
      const bool is_first = user->getOperand(0) == sum.tensor.value;
      if (kind(user) == OpKind::kDivide && !is_first) {
        return std::nullopt;
      }
      std::optional<Refusal> refusal;
      const SymId factor = plane_.evaluator->try_evaluate(user->getOperand(is_first ? 1 : 0),
                                                          indices_of(sum.tensor, plane_.sizes), refusal);
      if (factor == kNoSym || plane_.arena[factor].has_score) {
        return std::nullopt;
      }
      next.tensor.dims = dims;
      next.formula = plane_.arena.op(kind(user) == OpKind::kDivide ? Op::k_div : Op::k_mul, {sum.formula, factor});
      return next;
    }
    default: {
      auto followed = follow_use(sum.tensor, user, plane_.sizes, plane_.half);
      if (!followed) {
        return std::nullopt;
      }
      next.tensor = *std::move(followed);
      return next;
    }
  }
}

// Whether the sum is the sinks' gradient, to which each row contributes once. Heads that share sinks share it, too.
bool GradientSums::is_sinks_gradient(const PlaneSum& sum) {
  if (forward_.match.softmax.sinks.size() != 1 || plane_.arena.is_constant(forward_.match.softmax.sinks[0])) {
    return false;
  }
  std::vector<int> wanted = forward_.dimensions.roles.heads();
  std::vector<int> atoms = row_atoms(plane_, forward_.probabilities);
  if (forward_.match.softmax.sink_atoms[0] >= 0) {
    wanted.push_back(forward_.match.softmax.sink_atoms[0]);
    atoms.push_back(forward_.match.softmax.sink_atoms[0]);
  }
  return llvm::all_of(sum.tensor.order(), [&](int atom) { return llvm::is_contained(wanted, atom); }) &&
         sum.atoms == sorted(atoms) && check_.is_sinks_gradient(sum.formula).ok();
}

// Formulas contain the key, and its digits as functions of the key.
bool GradientSums::depends_on(SymId formula, int atom) {
  SymArena& arena = plane_.arena;
  if (!plane_.evaluator->runs_over_keys(affine_atom(atom)) || atom == kKeyAtom) {
    return arena.depends_on(formula, atom);
  }
  const SymId zero = arena.i32(0);
  if (arena.replace(formula, plane_.evaluator->atom_formula(atom), zero) != formula) {
    return true;
  }
  SymId rest = formula;
  for (const int digit : forward_.dimensions.roles.key) {
    rest = arena.replace(rest, plane_.evaluator->atom_formula(digit), zero);
  }
  return arena.depends_on(rest, kKeyAtom);
}

// The term of the score whose gradient the sum is.
std::optional<Term> GradientSums::term_with_gradient(const PlaneSum& sum) {
  const std::vector<int> wanted = sorted(sum.tensor.order());
  std::vector<SymId> tried;
  for (const Evaluator::Place& place : plane_.evaluator->places()) {
    const Sym& sym = plane_.arena[place.formula];
    const auto type = dtype(place.value.getType());
    if (sym.has_score || sym.type != Type::kF32 || sym.kind == SymKind::kConstant || any_computed(place.indices) ||
        !type || !is_float(*type) || llvm::is_contained(tried, place.formula)) {
      continue;
    }
    const auto tensor = place_tensor(place.value, affine_of(place.indices), plane_.evaluator->atom_sizes());
    if (!tensor || sorted(tensor->order()) != wanted) {
      continue;
    }
    // A term that is constant along a dimension comes from a smaller tensor, whose gradient it is.
    if (std::any_of(wanted.begin(), wanted.end(), [&](int atom) { return !depends_on(place.formula, atom); })) {
      continue;
    }
    tried.push_back(place.formula);
    const SymId shifted = score_with_shift(plane_.arena, forward_.match.softmax, place.formula);
    if (shifted != forward_.match.softmax.score && check_.is_gradient(sum.formula, shifted).ok()) {
      return Term{.formula = place.formula, .tensor = *tensor};
    }
  }
  return std::nullopt;
}

}  // namespace flashlift::stablehlo
