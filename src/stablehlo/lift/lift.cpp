#include "stablehlo/lift/lift.h"

#include <algorithm>

#include "llvm/ADT/DenseSet.h"
#include "stablehlo/lift/attempt.h"
#include "stablehlo/lift/candidates.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/lift/walk.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

constexpr int kMostSplits = 24;
constexpr int64_t kPartsAStep = 4;  // formula parts that count as one step of work

// Refuses two products that cannot be fused, whatever is between them.
Proof check_pair(mlir::Operation* first, mlir::Operation* second, const Work& work) {
  if (work.sets_size) {
    return refuse<Reason::kSetsSize>(describe(*work.sets_size));
  }
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
    if (is_dot(op)) {
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
    if (op == nullptr || is_dot(op) || !seen.insert(op).second) {
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

Outcome<LiftedAttention> lift_with_gradient(const LiftedAttention& forward, Work& work) {
  const auto lift = [&](bool opens_reductions) {
    return lift_pair(forward.first_product, forward.second_product, forward.side_of_probabilities,
                     {.opens_reductions = opens_reductions, .gradient = GradientUse::kBesideOutput, .work = &work})
        .lifted;
  };
  auto found = lift(false);
  return found.ok() ? std::move(found) : lift(true);
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
  if (!is_dot(second_product)) {
    return refuse<Reason::kNoCandidate>();
  }
  work.used_elsewhere = nullptr;
  work.first_products.clear();
  std::optional<Refusal> refusal;
  std::optional<Refusal> of_gradient;  // a better reason than the pair's refusal
  std::optional<Refusal> too_many;     // used only if the other side gives no better reason
  for (unsigned side = 0; side < 2; ++side) {
    if (!may_follow_softmax(second_product->getOperand(side), work) ||
        is_gradient_of_loss(second_product->getOperand(side))) {
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
      if (const Proof status = check_pair(first, second_product, work); !status.ok()) {
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
