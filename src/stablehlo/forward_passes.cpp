#include "stablehlo/forward_passes.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "llvm/ADT/SetVector.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "stablehlo/branch_residuals.h"
#include "stablehlo/branches.h"
#include "stablehlo/lift/candidates.h"
#include "stablehlo/lift/same_value.h"
#include "stablehlo/loop_carries.h"
#include "stablehlo/loop_residuals.h"
#include "stablehlo/manual_computations.h"
#include "stablehlo/reader/normalize.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// Attribute of choices: the number of the first product that it computes again.
constexpr const char* kChoice = "flashlift.choice";

// Whether a value depends on constants alone.
bool is_constant(mlir::Value value) {
  const mlir::IRMapping none;
  Slice slice(*value.getParentBlock(), none);
  return slice.add(value) && slice.arguments.empty();
}

// Whether a value is one of attention's scores, probabilities or row statistics, or computed from them: the slope of a
// score function is, too.
bool is_of_scores(mlir::Value value) {
  return is_near_softmax_or_behind(value,
                                   [](mlir::Operation* product) { return is_near_softmax(product->getResult(0)); });
}

// Whether a value is the result of a manual computation.
bool is_computed(mlir::Value value) {
  mlir::Operation* op = value.getDefiningOp();
  return op != nullptr && kind(op) == OpKind::kSdyManualComputation;
}

// Computes what the backward pass gets from the forward pass again, if it comes from scores near a softmax. Returns the
// backward pass, or null if there is nothing.
mlir::Operation* repeat(const Computation& forward, const Computation& backward, int64_t number_of_backward) {
  mlir::IRMapping known;  // from values of the forward pass to those of the backward pass
  std::vector<std::pair<unsigned, mlir::Value>> repeated;
  for (const auto [i, operand] : llvm::enumerate(backward.op->getOperands())) {
    const mlir::Value argument = backward.body().getArgument(static_cast<unsigned>(i));
    if (operand.getDefiningOp() == forward.op) {
      const unsigned number = mlir::cast<mlir::OpResult>(operand).getResultNumber();
      const mlir::Value value = forward.end()->getOperand(number);
      if (forward.out[number] != backward.in[i]) {
        continue;
      }
      if (is_of_scores(value) || is_constant(value)) {
        repeated.emplace_back(static_cast<unsigned>(i), value);
      } else {
        known.map(value, argument);
      }
    }
    for (const auto [j, theirs] : llvm::enumerate(forward.op->getOperands())) {
      if (theirs == operand && forward.in[j] == backward.in[i]) {
        known.map(forward.body().getArgument(static_cast<unsigned>(j)), argument);
      }
    }
  }
  Slice slice(forward.body(), known);
  const bool is_any_near = llvm::any_of(repeated, [](const auto& each) { return is_near_softmax(each.second); });
  if (!is_any_near || !llvm::all_of(repeated, [&](const auto& each) { return slice.add(each.second); })) {
    return nullptr;
  }
  llvm::SmallVector<mlir::Value> operands(backward.op->getOperands());
  Shardings in = backward.in;
  for (const mlir::BlockArgument argument : slice.arguments) {
    operands.push_back(forward.op->getOperand(argument.getArgNumber()));
    in.push_back(forward.in[argument.getArgNumber()]);
    known.map(mlir::Value(argument), mlir::Value(backward.body().addArgument(argument.getType(), argument.getLoc())));
  }
  mlir::OpBuilder builder = mlir::OpBuilder::atBlockBegin(&backward.body());
  for (mlir::Operation& op : forward.body()) {
    if (slice.operations.contains(&op)) {
      mlir::Operation* copy = builder.clone(op, known);
      if (kind(copy) == OpKind::kDotGeneral || kind(copy) == OpKind::kDot) {
        copy->setDiscardableAttr(kRepeated, builder.getI64IntegerAttr(number_of_backward));
      }
    }
  }
  for (const auto& [i, value] : llvm::reverse(repeated)) {
    backward.body().getArgument(i).replaceAllUsesWith(known.lookup(value));
    backward.body().eraseArgument(i);
    operands.erase(operands.begin() + i);
    in.erase(in.begin() + i);
  }
  return with_operands(backward, operands, in);
}

// Lets share_forward_passes() find the forward pass, of which the backward pass may read nothing any more.
void note_forward_pass(mlir::Operation* forward, mlir::Operation* backward) {
  mlir::Builder builder(forward->getContext());
  if (!forward->hasAttr(kForwardPass)) {
    forward->setDiscardableAttr(kForwardPass, mlir::DistinctAttr::create(builder.getUnitAttr()));
  }
  llvm::SmallVector<mlir::Attribute> passes = {forward->getDiscardableAttr(kForwardPass)};
  if (const auto others = backward->getAttrOfType<mlir::ArrayAttr>(kForwardPasses)) {
    llvm::append_range(passes, others);
  }
  backward->setDiscardableAttr(kForwardPasses, builder.getArrayAttr(passes));
}

// A forward pass that is computed again may share computations with the backward pass, such as that of values from a
// saved product and a bias, or of probabilities from saved scores.
void merge_equal_operations(mlir::Block& block) {
  SameValues are_same(SameValues::Barriers::kKept);
  std::map<std::pair<const void*, const void*>, llvm::SmallVector<mlir::Operation*>> seen;  // by name and type
  for (mlir::Operation& op : llvm::make_early_inc_range(block)) {
    if (!is_removable(&op) || op.getNumResults() != 1) {
      continue;
    }
    const mlir::Value value = op.getResult(0);
    auto& alike = seen[{op.getName().getAsOpaquePointer(), value.getType().getAsOpaquePointer()}];
    const auto* const same =
        llvm::find_if(alike, [&](mlir::Operation* other) { return are_same(other->getResult(0), value); });
    if (same == alike.end()) {
      alike.push_back(&op);
    } else {
      op.replaceAllUsesWith(*same);  // and stays, since values are compared by their addresses
    }
  }
}

// Now that loops and outer branches have their own copies of what was split off of earlier choices, the choices that
// read it compute it themselves.
void compute_beside_split_off(Module& module, const ComputationNumbers& except) {
  std::vector<mlir::Operation*> choices;  // outer ones first: their branches get copies for the inner ones
  module.op()->walk<mlir::WalkOrder::PreOrder>([&](mlir::Operation* op) {
    if (op->hasAttr(kChoice)) {
      choices.push_back(op);
    }
  });
  for (mlir::Operation* choice : choices) {
    const auto number = choice->getAttrOfType<mlir::IntegerAttr>(kChoice);
    compute_branch_residuals_again(choice, number.getInt(), except);
  }
  module.op()->walk([](mlir::Operation* op) { op->removeDiscardableAttr(kChoice); });
  forget_split_off(module.op());
}

}  // namespace

std::optional<Module> with_forward_passes(const Module& given, const ComputationNumbers& except) {
  const auto is_fed = given.op()->walk([](mlir::Operation* op) {
    const bool is_backward = kind(op) == OpKind::kSdyManualComputation && llvm::any_of(op->getOperands(), is_computed);
    return is_backward || reads_earlier_loop(op) || reads_earlier_choice(op) ? mlir::WalkResult::interrupt()
                                                                             : mlir::WalkResult::advance();
  });
  if (!is_fed.wasInterrupted()) {
    return std::nullopt;
  }
  Module module = given.clone();
  std::vector<mlir::Operation*> computations;
  forget_split_off(module.op());
  module.op()->walk([&](mlir::Operation* op) {
    for (const char* name :
         {kRepeated, kForwardPass, kForwardPasses, kChoice}) {  // the caller's module may use these names, too
      op->removeDiscardableAttr(name);
    }
    if (kind(op) == OpKind::kSdyManualComputation || kind(op) == OpKind::kWhile || is_choice(op)) {
      computations.push_back(op);
    }
  });
  bool any = false;
  for (auto [i, backward] : llvm::enumerate(computations)) {
    const int64_t number = static_cast<int64_t>(i) * kMostRepeated;
    if (kind(backward) == OpKind::kWhile) {
      any = compute_residuals_again(backward, number, except) != nullptr || any;
      continue;
    }
    if (kind(backward) != OpKind::kSdyManualComputation) {
      mlir::Builder attributes(module.context());
      backward->setDiscardableAttr(kChoice, attributes.getI64IntegerAttr(number));
      any = compute_branch_residuals_again(backward, number, except) || any;
      // The other half of this choice's numbers.
      any = split_residuals_off(backward, number + kMostRepeated / 2, except) || any;
      continue;
    }
    if (except.contains(number)) {
      continue;
    }
    llvm::SetVector<mlir::Operation*> givers;
    for (const mlir::Value operand : backward->getOperands()) {
      if (is_computed(operand)) {
        givers.insert(operand.getDefiningOp());
      }
    }
    for (mlir::Operation* giver : givers) {
      const auto reader = computation_of(backward);
      const auto forward = reader ? forward_pass_of(giver, *reader) : std::nullopt;
      if (mlir::Operation* now = forward ? repeat(*forward, *reader, number) : nullptr) {
        backward = now;
        note_forward_pass(with_operands(*forward, giver->getOperands(), forward->in), backward);
        any = true;
      }
    }
  }
  if (!any) {
    return std::nullopt;
  }
  remove_dead_code(module);  // reads of stored tensors, which would count as uses of what was split off
  compute_beside_split_off(module, except);
  remove_dead_code(module);
  remove_unused_carries(module);
  llvm::SetVector<mlir::Block*> blocks;
  module.op()->walk([&](mlir::Operation* op) {
    if (op->hasAttr(kRepeated)) {
      blocks.insert(op->getBlock());
    }
  });
  llvm::for_each(blocks, [](mlir::Block* block) { merge_equal_operations(*block); });
  remove_dead_code(module);
  return module;
}

ComputationNumbers repeated_in_vain(const Module& module) {
  ComputationNumbers numbers;
  module.op()->walk([&](mlir::Operation* op) {
    const auto number = op->getAttrOfType<mlir::IntegerAttr>(kRepeated);
    if (number && is_near_softmax(op->getResult(0))) {
      numbers.insert(number.getInt());
    }
  });
  return numbers;
}

}  // namespace flashlift::stablehlo
