#include "stablehlo/lift/lift.h"

#include <algorithm>

#include "llvm/ADT/DenseSet.h"
#include "stablehlo/lift/attempt.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/lift/walk.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

constexpr size_t kLongestChain = 20000;  // operations between one product and those it depends on
// The first products that are tried for one second product. Scores of an attention never have more. A model's residual
// stream has, and so has its gradient, whose loss also sums exponentials.
constexpr size_t kMostFirstProducts = 16;
constexpr int kMostSplits = 24;
constexpr int64_t kPartsAStep = 4;  // formula parts that count as one step of work

bool is_of_products(mlir::Operation* op) {
  return (kind(op) == OpKind::kDotGeneral || kind(op) == OpKind::kDot) && !side_summed_by_product(op);
}

int64_t summed_elements(mlir::Operation* product) {
  int64_t count = 1;
  if (!is_product(product)) {
    return count;
  }
  const auto dims = *dot_dims(product);
  for (const int64_t d : dims.lhs_contract) {
    count *= shape(product->getOperand(0))[static_cast<size_t>(d)];
  }
  return count;
}

// Whether an operation sums its operand: a reduction, a running sum, or a product with a constant of equal elements.
bool sums(mlir::Operation* op) {
  switch (kind(op)) {
    case OpKind::kReduce: {
      const auto how = reduction(op);
      return how && how->reducer == Reducer::kAdd;
    }
    case OpKind::kReduceWindow:
      return reducer(block(op)) == Reducer::kAdd;
    case OpKind::kDot:
    case OpKind::kDotGeneral:
      return side_summed_by_product(op).has_value();
    default:
      return false;
  }
}

// Whether a sum is a divisor or the argument of a logarithm, in any shape and with any guard.
bool divides(mlir::Operation* sum) {
  constexpr size_t kFarthest = 50;
  return any_operation({sum}, kFarthest, [](mlir::Operation* op, OperationStack& stack) {
    for (mlir::OpOperand& use : op->getUses()) {
      mlir::Operation* const user = use.getOwner();
      switch (kind(user)) {
        case OpKind::kDivide:
          if (use.getOperandNumber() == 1) {
            return true;
          }
          break;
        case OpKind::kLog:
          return true;
        case OpKind::kAdd:
        case OpKind::kMaximum:
        case OpKind::kSelect:
        case OpKind::kConvert:
        case OpKind::kReshape:
        case OpKind::kTranspose:
        case OpKind::kBroadcastInDim:
          stack.push_back(user);
          break;
        default:
          break;
      }
    }
    return false;
  });
}

// The exponent of an exponential or a power.
mlir::Value exponent_of(mlir::Operation* exponential) {
  return exponential->getOperand(exponential->getNumOperands() - 1);
}

// Whether the exponential is e^(-x²), the derivative of erf, which gradients of biases sum.
bool is_bell(mlir::Operation* exponential) {
  mlir::Operation* const negative = defining(exponent_of(exponential), OpKind::kNegate);
  mlir::Operation* const square = negative != nullptr ? negative->getOperand(0).getDefiningOp() : nullptr;
  return square != nullptr && (kind(square) == OpKind::kChloSquare ||
                               (kind(square) == OpKind::kMultiply && square->getOperand(0) == square->getOperand(1)));
}

// Whether each number of a smaller tensor is repeated, as a row's number is for its keys.
bool is_spread(mlir::Value value) {
  mlir::Operation* const broadcast = defining(value, OpKind::kBroadcastInDim);
  return broadcast != nullptr && static_tensor(broadcast->getOperand(0)) &&
         static_tensor(broadcast->getOperand(0)).getNumElements() > 1 && !splat(broadcast->getOperand(0));
}

// Whether the exponential is e^-x + 1 of a sigmoid, log(1 + e^x) of softplus, e^(x - y), with another y for each x, of
// softplus's derivative, or the derivative of (e^x - 1) of elu.
bool is_of_gate(mlir::Operation* exponential) {
  mlir::Operation* const difference = defining(exponent_of(exponential), OpKind::kSubtract);
  return (difference != nullptr && !splat(difference->getOperand(1)) && !is_spread(difference->getOperand(1))) ||
         llvm::any_of(exponential->getUses(),
                      [](mlir::OpOperand& use) {
                        mlir::Operation* const user = use.getOwner();
                        return kind(user) == OpKind::kLogPlusOne ||
                               (kind(user) == OpKind::kAdd && splat(user->getOperand(1 - use.getOperandNumber())));
                      }) ||
         llvm::any_of(exponent_of(exponential).getUsers(),
                      [](mlir::Operation* user) { return kind(user) == OpKind::kExponentialMinusOne; });
}

// Whether the exponential is summed before the next product. That of a softmax is. That of an activation (erf, sigmoid,
// softplus) is not, and the report need not mention it. Its gradient may be summed for a bias, but divides nothing.
bool is_summed(mlir::Operation* exponential) {
  const bool must_divide = is_bell(exponential) || is_of_gate(exponential);
  constexpr size_t kFarthest = 500;  // operations between the exponential and its sum
  return any_operation({exponential}, kFarthest, [&](mlir::Operation* op, OperationStack& stack) {
    if (!is_of_products(op)) {
      stack.insert(stack.end(), op->user_begin(), op->user_end());
    }
    return sums(op) && (!must_divide || divides(op));
  });
}

bool is_summed(mlir::Operation* exponential, Work& work) {
  const auto [known, is_new] = work.summed_exponentials.try_emplace(exponential);
  if (is_new) {
    known->second = is_summed(exponential);
  }
  return known->second;
}

// Whether a number of the row, such as a log-sum-exp, is subtracted in the exponent. If so, the row may sum to 1
// without a division.
bool subtracts_row(mlir::Operation* exponential) {
  constexpr size_t kFarthest = 12;
  return any_operation({exponent_of(exponential).getDefiningOp()}, kFarthest,
                       [](mlir::Operation* op, OperationStack& stack) {
                         switch (kind(op)) {
                           case OpKind::kSubtract:
                             if (is_spread(op->getOperand(1))) {
                               return true;
                             }
                             stack.push_back(op->getOperand(0).getDefiningOp());
                             break;
                           case OpKind::kAdd:
                             for (const mlir::Value operand : op->getOperands()) {
                               mlir::Operation* const negated = defining(operand, OpKind::kNegate);
                               if (negated != nullptr && is_spread(negated->getOperand(0))) {
                                 return true;
                               }
                               stack.push_back(operand.getDefiningOp());
                             }
                             break;
                           case OpKind::kMultiply:
                           case OpKind::kDivide:
                           case OpKind::kSelect:
                           case OpKind::kConvert:
                           case OpKind::kMinimum:
                           case OpKind::kMaximum:
                           case OpKind::kReshape:
                           case OpKind::kTranspose:
                             push_definitions(op, stack);
                             break;
                           default:
                             break;
                         }
                         return false;
                       });
}

// Whether multiplication by this factor only scales or masks, unlike a gate.
bool masks(mlir::Value factor) {
  mlir::Operation* const converted = defining(factor, OpKind::kConvert);
  return splat(factor) || is_spread(factor) ||
         (converted != nullptr && dtype(converted->getOperand(0).getType()) == DType::kBool);
}

// Whether the exponential is a weight in a product, possibly scaled, masked or divided. Its row sum may be another
// product, or missing. An exponential that is added to something, as in a sigmoid, is no weight.
bool weighs(mlir::Operation* exponential) {
  constexpr size_t kFarthest = 20;
  return !is_bell(exponential) &&
         any_operation({exponential}, kFarthest, [](mlir::Operation* op, OperationStack& stack) {
           for (mlir::OpOperand& use : op->getUses()) {
             mlir::Operation* const user = use.getOwner();
             switch (kind(user)) {
               case OpKind::kDot:
               case OpKind::kDotGeneral:
                 return true;
               case OpKind::kDivide:
               case OpKind::kSelect:
                 if (use.getOperandNumber() == (kind(user) == OpKind::kDivide ? 0 : 1)) {
                   stack.push_back(user);
                 }
                 break;
               case OpKind::kMultiply:
                 if (masks(user->getOperand(1 - use.getOperandNumber()))) {
                   stack.push_back(user);
                 }
                 break;
               case OpKind::kConvert:
               case OpKind::kReshape:
               case OpKind::kTranspose:
                 stack.push_back(user);
                 break;
               default:
                 break;
             }
           }
           return false;
         });
}

bool is_of_softmax(mlir::Operation* op, Work& work) {
  return is_exponential(op) && (is_summed(op, work) || subtracts_row(op) || weighs(op));
}

// Whether the sum is over differences of two tensors, each repeated along the other's dimensions: |q - k|, (q - k)².
bool is_of_differences(mlir::Operation* sum) {
  constexpr size_t kFarthest = 8;
  const auto elementwise = [](mlir::Value value) {
    mlir::Operation* const op = value.getDefiningOp();
    return op != nullptr && is_elementwise(op) ? op : nullptr;
  };
  return sums(sum) && sum->getNumOperands() > 0 &&
         any_operation({elementwise(sum->getOperand(0))}, kFarthest, [&](mlir::Operation* op, OperationStack& stack) {
           for (const mlir::Value operand : op->getOperands()) {
             stack.push_back(elementwise(operand));
           }
           return kind(op) == OpKind::kSubtract && is_spread(op->getOperand(0)) && is_spread(op->getOperand(1));
         });
}

bool is_fused_attention(mlir::Operation* op) {
  const auto call = custom_call(op);
  return call && call->target.starts_with("flashlift.");
}

// A single walk over the module, so that a module without attention costs no more. A search from each product could
// visit the whole module each time.
llvm::DenseSet<mlir::Operation*> find_without_softmax(mlir::Operation* module, Work& work) {
  std::vector<mlir::Operation*> stack;
  module->walk([&](mlir::Operation* op) {
    if (is_of_softmax(op, work)) {
      stack.push_back(op);
    }
  });
  llvm::DenseSet<mlir::Operation*> behind;
  while (!stack.empty()) {
    mlir::Operation* op = stack.back();
    stack.pop_back();
    if (is_of_products(op) || is_fused_attention(op) || !behind.insert(op).second) {
      continue;
    }
    stack.insert(stack.end(), op->user_begin(), op->user_end());
    if (kind(op) == OpKind::kReturn) {
      stack.push_back(op->getParentOp());
    }
  }
  llvm::DenseSet<mlir::Operation*> without;
  module->walk([&](mlir::Operation* op) {
    if (!behind.contains(op)) {
      without.insert(op);
    }
  });
  return without;
}

bool may_follow_softmax(mlir::Value value, Work& work) {
  mlir::Operation* op = value.getDefiningOp();
  if (op == nullptr) {
    return false;
  }
  if (!work.without_softmax) {
    mlir::Operation* module = op;
    while (module->getParentOp() != nullptr) {
      module = module->getParentOp();
    }
    work.without_softmax = find_without_softmax(module, work);
  }
  return !work.without_softmax->contains(op);
}

// The operations that a value is computed from, up to the products before it.
struct Chain {
  std::vector<mlir::Operation*> products;
  std::vector<mlir::Operation*> exponentials;  // and powers, whose base may be a number
  bool is_cut = false;                         // longer than what is looked at
  mlir::Operation* differences = nullptr;      // a sum of them, as a distance of queries and keys is
  bool has_softmax = false;  // or what may be one: an exponential that is summed or less a number of its row
};

// Follows the results of regions, so that products in branches and loops are found. No formula reads a region: such a
// chain only serves to find the reason for the report. Stops after too many products: the chain of a deep model's
// residual stream would be as long as the module, for each of its products.
Chain chain_behind(mlir::Value value, Work& work) {
  constexpr int64_t kOperationsAStep = 8;
  Chain chain;
  llvm::DenseSet<mlir::Operation*> seen;
  llvm::DenseSet<mlir::Value> barriers;
  std::vector<mlir::Value> stack{value};
  const auto is_of_too_many = [&] { return chain.has_softmax && chain.products.size() > kMostFirstProducts; };
  while (!stack.empty() && seen.size() < kLongestChain && !is_of_too_many()) {
    const auto result = llvm::dyn_cast<mlir::OpResult>(stack.back());
    stack.pop_back();
    if (!result) {
      continue;
    }
    mlir::Operation* op = result.getOwner();
    const OpKind what = kind(op);
    if (what == OpKind::kOptimizationBarrier) {  // its results have nothing to do with each other
      if (barriers.insert(result).second) {
        stack.push_back(op->getOperand(result.getResultNumber()));
      }
      continue;
    }
    const bool has_branches = what == OpKind::kCase || what == OpKind::kIf;
    for (unsigned i = 0; i < op->getNumRegions() && (has_branches || what == OpKind::kWhile); ++i) {
      mlir::Block& body = block(op, i);
      mlir::Operation* const end = body.empty() ? nullptr : &body.back();
      if (end != nullptr && kind(end) == OpKind::kReturn && result.getResultNumber() < end->getNumOperands()) {
        stack.push_back(end->getOperand(result.getResultNumber()));
      }
    }
    if (!seen.insert(op).second) {
      continue;
    }
    const bool is_dot = what == OpKind::kDot || what == OpKind::kDotGeneral;
    if (is_dot && is_of_products(op)) {
      chain.products.push_back(op);
      continue;
    }
    if (what == OpKind::kCustomCall && is_fused_attention(op)) {
      continue;
    }
    if (what == OpKind::kExponential || what == OpKind::kPower) {
      chain.exponentials.push_back(op);
      chain.has_softmax = chain.has_softmax || is_of_softmax(op, work);
    }
    if (chain.products.empty() && is_of_differences(op)) {  // told where there are no products
      chain.differences = op;
    }
    stack.insert(stack.end(), op->operand_begin(), op->operand_end());
  }
  chain.is_cut = !stack.empty();
  work.spend(1 + static_cast<int64_t>(seen.size()) / kOperationsAStep);
  // Of several products the one with the longest sums is taken for the scores first; others become captured tensors.
  llvm::DenseMap<mlir::Operation*, int64_t> sums;
  for (mlir::Operation* product : chain.products) {
    sums[product] = summed_elements(product);
  }
  std::stable_sort(chain.products.begin(), chain.products.end(),
                   [&](mlir::Operation* x, mlir::Operation* y) { return sums.at(x) > sums.at(y); });
  return chain;
}

// Refuses two products that cannot be fused, whatever is between them.
Proof check_pair(mlir::Operation* first, mlir::Operation* second) {
  for (mlir::Operation* product : {first, second}) {
    if (!is_product(product)) {
      return refuse<Reason::kDynamicSizes>(describe(product->getLoc()));
    }
  }
  if (first->getBlock() != second->getBlock()) {
    mlir::Operation* const other = first->getBlock()->getParentOp();
    const bool encloses = other->isProperAncestor(second);
    mlir::Operation* const wall = encloses ? second->getBlock()->getParentOp() : other;
    return refuse<Reason::kAcrossRegions>(describe(first->getLoc()), encloses ? "outside of" : "in",
                                          wall->getName().getStringRef().str(), encloses ? "in" : "outside of");
  }
  return {};
}

// The products behind the probabilities that the evaluator surely reads, as long as none of them is the scores.
std::vector<mlir::Operation*> products_surely_read(mlir::Value probabilities) {
  std::vector<mlir::Operation*> found;
  any_operation({probabilities.getDefiningOp()}, kLongestChain, [&](mlir::Operation* op, OperationStack& stack) {
    if (is_of_products(op)) {
      found.push_back(op);
      return false;
    }
    // The evaluator may read other operations only in part, or only one of their results.
    const auto how = kind(op) == OpKind::kReduce ? reduction(op) : std::nullopt;
    const bool is_layout = kind(op) == OpKind::kReshape || kind(op) == OpKind::kTranspose ||
                           kind(op) == OpKind::kBroadcastInDim || kind(op) == OpKind::kConvert;
    if (is_layout || is_elementwise(op) || (how && how->inputs.size() == 1)) {
      push_definitions(op, stack);
    }
    return false;
  });
  return found;
}

DependsOn& computed_from(mlir::Operation* first, Work& work) {
  constexpr size_t kMostKept = 64;  // each may know as many operations as the module has
  if (work.computed_from.size() >= kMostKept) {
    work.computed_from.clear();
  }
  return work.computed_from.try_emplace(first, first, std::vector<mlir::Operation*>()).first->second;
}

// Another of these products that is computed from the first one. The evaluator fails there, so that such a pair is
// none: of a residual stream most are, and each attempt reads all of it.
mlir::Operation* product_between(mlir::Operation* first, const std::vector<mlir::Operation*>& read, Work& work) {
  DependsOn& depends = computed_from(first, work);
  const auto found =
      std::find_if(read.begin(), read.end(), [&](mlir::Operation* op) { return op != first && depends(op); });
  return found == read.end() ? nullptr : *found;
}

// Whether an exponential is computed from the first product, as in every attention's probabilities. Where a loss is a
// softmax, its gradient flows past the products of the backward pass, which stand behind that softmax.
bool may_be_scores(mlir::Operation* first, const Chain& chain, Work& work) {
  DependsOn& depends = computed_from(first, work);
  return chain.is_cut || llvm::any_of(chain.exponentials, [&](mlir::Operation* op) { return depends(op); });
}

struct Attempt {
  Outcome<LiftedAttention> lifted;
  bool has_read = false;           // whether the probabilities were read as a formula
  bool leaves_reductions = false;  // whether there are reductions that only `opens_reductions` reads
};

// Retries with smaller digits until the lift requests no further split.
Attempt lift_pair(mlir::Operation* first, mlir::Operation* second, unsigned side, const AttemptOptions& options) {
  DigitSizes digits;
  for (const int64_t size : shape(second->getOperand(side))) {
    digits.push_back({size});
  }
  bool leaves_reductions = false;
  for (int tries = 0; tries < kMostSplits; ++tries) {
    if (options.work->is_spent()) {
      return {refuse<Reason::kTooMuchWork>()};
    }
    Plane plane({.first = first, .second = second, .side = side}, options);
    auto lifted = lift_plane(plane, digits);
    options.work->spend(plane.arena.replaced_parts() / kPartsAStep);
    leaves_reductions = leaves_reductions || (plane.evaluator && plane.evaluator->leaves_reductions());
    if (lifted.ok() || !plane.wanted_split) {
      // An attempt that fails because of an empty dimension has no sizes.
      const bool is_of_one_key =
          !lifted.ok() && plane.sizes[kKeyAtom] == 1 && lifted.error().reason != Reason::kEmptyDimension;
      return {is_of_one_key ? refuse<Reason::kOneKey>() : std::move(lifted), plane.has_probabilities,
              leaves_reductions};
    }
    const DigitSplit& split = *plane.wanted_split;
    auto& sizes = digits[split.dim];
    sizes[split.digit] /= split.inner;
    sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(split.digit) + 1, split.inner);
  }
  return {refuse<Reason::kTooManySplits>(), true, true};
}

// Whether the product sums its operand over dimensions that none of the row sums before it sum over.
bool sums_over_queries(mlir::Operation* product, unsigned side) {
  constexpr size_t kFarthest = 50;
  const mlir::Value probabilities = product->getOperand(side);
  if (!is_product(product)) {
    return false;
  }
  const OperandDims own = operand_dims(product, side);
  bool found = false;
  llvm::DenseSet<mlir::Operation*> seen;
  std::vector<mlir::Value> stack{probabilities};
  while (!stack.empty() && seen.size() < kFarthest) {
    mlir::Operation* op = stack.back().getDefiningOp();
    stack.pop_back();
    if (op == nullptr || is_of_products(op) || !seen.insert(op).second) {
      continue;
    }
    const auto how = kind(op) == OpKind::kReduce ? reduction(op) : std::nullopt;
    if (how && static_tensor(how->inputs[0]) && shape(how->inputs[0]) == shape(probabilities)) {
      found = true;
      // Other dimensions that stay are no gradient's: a product that mixes heads has these.
      if (how->dims.size() != own.free.size() ||
          llvm::any_of(how->dims, [&](int64_t dim) { return !llvm::is_contained(own.free, dim); })) {
        return false;
      }
    }
    stack.insert(stack.end(), op->operand_begin(), op->operand_end());
  }
  return found;
}

// What is told of a pair that failed in the simplest way with this reason.
Refusal reason_of(const Refusal& refusal, mlir::Operation* second, unsigned side) {
  return refusal.reason == Reason::kAcrossPlaces && sums_over_queries(second, side)
             ? refuse<Reason::kGradientOfValuesAlone>(describe(second->getLoc()))
             : refusal;
}

// For a pair that no way can lift, whose reason is wanted.
Outcome<LiftedAttention> lift_in_simplest_way(mlir::Operation* first, mlir::Operation* second, unsigned side,
                                              Work& work) {
  auto lifted = lift_pair(first, second, side, {.work = &work}).lifted;
  return lifted.ok() ? std::move(lifted) : reason_of(lifted.error(), second, side);
}

// Errors: why the simplest way failed; where only the gradient stands in the way, why that could not be lifted.
Outcome<LiftedAttention> lift_in_any_way(mlir::Operation* first, mlir::Operation* second, unsigned side, bool gradients,
                                         Work& work) {
  const Attempt simplest = lift_pair(first, second, side, {.work = &work});
  const auto& lifted = simplest.lifted;
  if (lifted.ok()) {
    return lifted;
  }
  std::optional<Refusal> of_gradient;
  bool has_read[] = {simplest.has_read, simplest.has_read};  // without and with reductions opened
  bool leaves_reductions = simplest.leaves_reductions;
  constexpr AttemptOptions kOtherWays[] = {
      {.opens_reductions = true},
      {.gradient = GradientUse::kBesideOutput},
      {.opens_reductions = true, .gradient = GradientUse::kBesideOutput},
      {.gradient = GradientUse::kAlone},
      {.opens_reductions = true, .gradient = GradientUse::kAlone},
  };
  for (AttemptOptions way : kOtherWays) {
    way.work = &work;
    if (way.gradient != GradientUse::kNone && !gradients) {
      continue;
    }
    // Skips attempts that must fail like an earlier one: to open reductions where there are none, and to fuse the
    // gradient, too, where the probabilities already could not be read.
    const bool is_beside_output = way.gradient == GradientUse::kBesideOutput;
    if ((way.opens_reductions && !leaves_reductions) || (is_beside_output && !has_read[way.opens_reductions])) {
      continue;
    }
    Attempt attempt = lift_pair(first, second, side, way);
    auto& again = attempt.lifted;
    if (again.ok()) {
      return again;
    }
    if (way.opens_reductions) {
      has_read[1] = has_read[1] || attempt.has_read;
    } else {
      leaves_reductions = attempt.leaves_reductions;
    }
    const bool tells_more =
        again.error().reason == Reason::kNotByGradient || again.error().reason == Reason::kInvalidProblem;
    // A product whose result is divided has a second use if its gradient is computed.
    const bool finds_division =
        again.error().reason != Reason::kNotDivided && again.error().reason != Reason::kNoOutputGradient;
    if (is_beside_output && lifted.error().reason == Reason::kNotDivided && finds_division) {
      of_gradient = of_gradient ? of_gradient : again.error();
    }
    // Unless there is a product with the output's gradient, the other use is not a gradient.
    if (lifted.error().reason == Reason::kUsedElsewhere && is_beside_output &&
        again.error().reason != Reason::kNoOutputGradient) {
      if (tells_more) {
        return again.error();
      }
      of_gradient = of_gradient ? of_gradient : again.error();
    }
  }
  return of_gradient ? *of_gradient : reason_of(lifted.error(), second, side);
}

}  // namespace

namespace {

// Whether the exponential has a row sum of its own, and not only one of its products with other tensors of the scores,
// as the gradient by the scores has.
bool has_row_sum(mlir::Operation* exponential) {
  constexpr size_t kFarthest = 100;
  return any_operation({exponential}, kFarthest, [](mlir::Operation* op, OperationStack& stack) {
    if (sums(op)) {
      return true;
    }
    for (mlir::OpOperand& use : op->getUses()) {
      mlir::Operation* const user = use.getOwner();
      const bool weighs = kind(user) == OpKind::kMultiply && !masks(user->getOperand(1 - use.getOperandNumber()));
      if (!weighs && (!is_of_products(user) || sums(user))) {
        stack.push_back(user);
      }
    }
    return false;
  });
}

// Keeps the refusal of the pair that is most likely an attention. Scores may be a sum of several products, as with
// relative positions: pairs with another one than that of queries and keys fail because of how its result is read.
void keep_better(std::optional<Refusal>& best, const Refusal& other) {
  constexpr Reason kOfOtherProducts[] = {Reason::kProductBetween, Reason::kReadAcrossPlaces, Reason::kAcrossPlaces,
                                         Reason::kNoKeys};
  if (!best ||
      (llvm::is_contained(kOfOtherProducts, best->reason) && !llvm::is_contained(kOfOtherProducts, other.reason))) {
    best = other;
  }
}

}  // namespace

bool is_normalised_by_row(mlir::Operation* product) {
  constexpr size_t kFarthest = 100;
  return any_operation({product->user_begin(), product->user_end()}, kFarthest,
                       [](mlir::Operation* op, OperationStack& stack) {
                         if (is_of_products(op)) {
                           return false;
                         }
                         stack.insert(stack.end(), op->user_begin(), op->user_end());
                         return is_exponential(op) && subtracts_row(op) && !has_row_sum(op);
                       });
}

Outcome<LiftedAttention> lift_with_gradient(const LiftedAttention& forward, Work& work) {
  const auto lift = [&](bool opens_reductions) {
    return lift_pair(forward.first_product, forward.second_product, forward.side_of_probabilities,
                     {.opens_reductions = opens_reductions, .gradient = GradientUse::kBesideOutput, .work = &work})
        .lifted;
  };
  auto found = lift(false);
  return found.ok() ? std::move(found) : lift(true);
}

bool is_near_softmax(mlir::Value value) {
  constexpr size_t kFarthest = 500;
  const auto is_of_softmax = [](mlir::Operation* op) { return is_exponential(op) && is_summed(op); };
  const auto goes_on = [](mlir::Operation* op) {
    return !is_of_products(op) && kind(op) != OpKind::kOptimizationBarrier;
  };
  const auto ahead = [&](mlir::Operation* op, OperationStack& stack) {
    if (goes_on(op)) {
      stack.insert(stack.end(), op->user_begin(), op->user_end());
    }
    return is_of_softmax(op);
  };
  const auto behind = [&](mlir::Operation* op, OperationStack& stack) {
    if (goes_on(op)) {
      push_definitions(op, stack);
    }
    return is_of_softmax(op);
  };
  return any_operation({value.user_begin(), value.user_end()}, kFarthest, ahead) ||
         any_operation({value.getDefiningOp()}, kFarthest, behind);
}

std::vector<const ResultView*> results_of(const LiftedAttention& found) {
  std::vector<const ResultView*> results;
  const auto add = [&](const ResultView& result) {
    if (result.replaced) {
      results.push_back(&result);
    }
  };
  add(found.out);
  if (found.lse) {
    add(*found.lse);
  }
  if (found.gradient) {
    for (const auto* result : {&found.gradient->d_q, &found.gradient->d_k, &found.gradient->d_v}) {
      if (*result) {
        add(**result);
      }
    }
    for (const CaptureGradient& by : found.gradient->d_captures) {
      add(by.result);
    }
    for (const ResultView& result : found.gradient->d_sinks) {
      add(result);
    }
  }
  return results;
}

Outcome<LiftedAttention> lift_attention(mlir::Operation* second_product, bool gradients, Work& work) {
  if (work.is_spent()) {
    return refuse<Reason::kTooMuchWork>();
  }
  if (!is_of_products(second_product)) {
    return refuse<Reason::kNoCandidate>();
  }
  work.used_elsewhere = nullptr;
  work.first_products.clear();
  std::optional<Refusal> refusal;
  std::optional<Refusal> of_gradient;  // a better reason than the pair's refusal
  std::optional<Refusal> too_many;     // used only if the other side gives no better reason
  for (unsigned side = 0; side < 2; ++side) {
    if (!may_follow_softmax(second_product->getOperand(side), work)) {
      continue;
    }
    const Chain chain = chain_behind(second_product->getOperand(side), work);
    if (!chain.has_softmax) {
      continue;
    }
    if (chain.products.size() > kMostFirstProducts) {
      too_many = refuse<Reason::kTooManyProducts>(kMostFirstProducts);
      continue;
    }
    llvm::append_range(work.first_products, chain.products);
    if (chain.products.empty() && chain.differences != nullptr) {
      refusal = refuse<Reason::kOfDifferences>(describe(chain.differences->getLoc()));
    }
    const auto surely_read = chain.products.size() > 1 ? products_surely_read(second_product->getOperand(side))
                                                       : std::vector<mlir::Operation*>();
    for (mlir::Operation* first : chain.products) {
      if (const Proof status = check_pair(first, second_product); !status.ok()) {
        refusal = refusal ? refusal : status.error();
        continue;
      }
      const bool may_hold_scores = may_be_scores(first, chain, work);
      if (refusal && !may_hold_scores) {
        continue;
      }
      mlir::Operation* const between = product_between(first, surely_read, work);
      if (between != nullptr) {
        keep_better(refusal, refuse<Reason::kProductBetween>(describe(between->getLoc())));
        continue;
      }
      auto lifted = may_hold_scores ? lift_in_any_way(first, second_product, side, gradients, work)
                                    : lift_in_simplest_way(first, second_product, side, work);
      if (lifted.ok()) {
        return lifted;
      }
      constexpr Reason kOfOtherUses[] = {Reason::kUsedElsewhere, Reason::kNotByGradient, Reason::kLogSumExpWithoutKeys};
      if (llvm::is_contained(kOfOtherUses, lifted.error().reason)) {
        work.used_elsewhere = first;
      }
      if (const auto known = work.refused_gradients.find(first); known != work.refused_gradients.end()) {
        of_gradient = of_gradient ? of_gradient : known->second;
      }
      keep_better(refusal, lifted.error());
    }
  }
  for (const auto& found : {of_gradient, refusal, too_many}) {
    if (found) {
      return *found;
    }
  }
  return refuse<Reason::kNoCandidate>();
}

}  // namespace flashlift::stablehlo
