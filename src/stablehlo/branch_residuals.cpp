#include "stablehlo/branch_residuals.h"

#include <optional>
#include <utility>
#include <vector>

#include "llvm/ADT/SetVector.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "stablehlo/branches.h"
#include "stablehlo/lift/candidates.h"
#include "stablehlo/lift/same_value.h"
#include "stablehlo/loop.h"
#include "stablehlo/loop_residuals.h"
#include "stablehlo/manual_computations.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"
#include "stablehlo/sharding.h"

namespace flashlift::stablehlo {
namespace {

// Attribute of choices that were split off.
constexpr const char* kSplitOff = "flashlift.split_off";

// The earlier choices on the same index whose results the branches of this one read.
llvm::SetVector<mlir::Operation*> earlier_choices(mlir::Operation* choice) {
  llvm::SetVector<mlir::Operation*> found;
  if (!is_choice(choice)) {
    return found;
  }
  choice->walk([&](mlir::Operation* inner) {
    for (const mlir::Value operand : inner->getOperands()) {
      mlir::Operation* const source = operand.getDefiningOp();
      if (inner != choice && source != nullptr && is_choice(source) && source->getBlock() == choice->getBlock() &&
          !found.contains(source) && source->getName() == choice->getName() &&
          source->getNumRegions() == choice->getNumRegions() && !has_annotated_results(source) &&
          SameValues()(source->getOperand(0), choice->getOperand(0))) {
        found.insert(source);
      }
    }
  });
  return found;
}

mlir::Block* branch(mlir::Operation* choice, unsigned number) {
  mlir::Region& region = choice->getRegion(number);
  const bool is_known = region.hasOneBlock() && !region.front().empty() && region.front().getNumArguments() == 0;
  return is_known ? &region.front() : nullptr;
}

// Products that are no part of attention would be computed twice.
bool is_cheap(const Slice& slice) {
  return llvm::none_of(slice.operations, [](mlir::Operation* op) {
    const auto is_other_product = [](mlir::Operation* inner) {
      const bool is_costly = kind(inner) == OpKind::kConvolution || (is_dot(inner) && !is_product_of_attention(inner));
      return is_costly ? mlir::WalkResult::interrupt() : mlir::WalkResult::advance();
    };
    return op->walk(is_other_product).wasInterrupted();
  });
}

// Masks are of no use as tensors: which keys they exclude is only seen where they are computed. (Those that a loop
// draws, as for dropout, are.)
bool is_mask(mlir::Value value) {
  const mlir::IRMapping none;
  Slice slice(*value.getParentBlock(), none);
  const auto type = static_tensor(value);
  return type && type.getElementType().isInteger(1) && slice.add(value) &&
         llvm::none_of(slice.operations, [](mlir::Operation* op) {
           return is_dot(op) || kind(op) == OpKind::kConvolution || kind(op) == OpKind::kWhile;
         });
}

bool is_computed_again(mlir::Value value) {
  return is_of_attention(value) || is_factor_of_scores(value) || is_mask(value) || is_split_off(value);
}

// Whether a value of a loop's body is computed from numbers that differ between iterations, such as a layer's input.
// (Integers count iterations: masks are computed from these.)
bool is_of_iteration(mlir::Value value) {
  const auto is_carried = [](mlir::BlockArgument argument) {
    mlir::Block* const body = argument.getOwner();
    mlir::Operation* const loop = body->getParentOp();
    const auto type = static_tensor(argument);
    return is_regular(loop) && body == &block(loop, 1) && type && mlir::isa<mlir::FloatType>(type.getElementType()) &&
           body->back().getOperand(argument.getArgNumber()) != argument;
  };
  const mlir::IRMapping none;
  Slice slice(*value.getParentBlock(), none);
  return slice.add(value) && llvm::any_of(slice.arguments, is_carried);
}

// Lets one branch do so. Returns whether anything has changed. If `reads_stored`, the branch reads what the earlier
// choice returns of the iteration, even if it comes from outside of that choice: another loop has it only if stored.
bool repeat_in_branch(mlir::Operation* forward, mlir::Operation* backward, unsigned number, int64_t product_number,
                      bool reads_stored) {
  mlir::Block* const from = branch(forward, number);
  mlir::Block* const to = branch(backward, number);
  if (from == nullptr || to == nullptr || from->back().getNumOperands() != forward->getNumResults()) {
    return false;
  }
  const auto is_read_here = [&](mlir::OpOperand& use) {
    return backward->getRegion(number).isAncestor(use.getOwner()->getParentRegion());
  };
  mlir::IRMapping known;  // from values of the forward pass to those of the backward pass
  std::vector<std::pair<mlir::Value, mlir::Value>> repeated;  // a value of the forward pass, and the result that it is
  for (const mlir::OpResult result : forward->getResults()) {
    mlir::Value value = from->back().getOperand(result.getResultNumber());
    if (value.getParentBlock() == from && llvm::any_of(result.getUses(), is_read_here)) {
      if (is_computed_again(value)) {
        repeated.emplace_back(value, result);
      } else {
        known.map(value, mlir::Value(result));
      }
    } else if (reads_stored && !result.use_empty() && value.getParentBlock() == forward->getBlock() &&
               is_of_iteration(value)) {
      known.map(value, mlir::Value(result));
    }
  }
  Slice slice(*from, known);
  const bool is_any_near =
      llvm::any_of(repeated, [](const auto& each) { return is_near_softmax(each.first) || is_split_off(each.first); });
  if (!is_any_near || !llvm::all_of(repeated, [&](const auto& each) { return slice.add(each.first); }) ||
      !is_cheap(slice)) {
    return false;
  }
  mlir::OpBuilder builder = mlir::OpBuilder::atBlockBegin(to);
  for (mlir::Operation& op : *from) {
    if (slice.operations.contains(&op)) {
      mlir::Operation* const copy = builder.clone(op, known);
      if (is_dot(copy)) {
        copy->setDiscardableAttr(kRepeated, builder.getI64IntegerAttr(product_number));
      }
    }
  }
  for (const mlir::OpResult result : forward->getResults()) {
    mlir::Value value = from->back().getOperand(result.getResultNumber());
    mlir::Value same = value.getParentBlock() == from ? known.lookupOrNull(value) : known.lookupOrDefault(value);
    if (same && same != result) {
      mlir::Value(result).replaceUsesWithIf(same, is_read_here);
    }
  }
  return true;
}

// Lets each branch of the first choice return zeros for what only other branches of the second one read: the branches
// share results.
void return_zeros(mlir::Operation* forward, mlir::Operation* backward) {
  for (const mlir::OpResult result : forward->getResults()) {
    mlir::Builder attributes(forward->getContext());
    const auto type = static_tensor(result);
    const mlir::Attribute zeros = type ? attributes.getZeroAttr(type) : mlir::Attribute();
    if (!zeros ||
        !llvm::all_of(result.getUsers(), [&](mlir::Operation* user) { return backward->isProperAncestor(user); })) {
      continue;
    }
    for (unsigned i = 0; i < backward->getNumRegions(); ++i) {
      mlir::Operation* const end = branch(forward, i) == nullptr ? nullptr : &branch(forward, i)->back();
      const bool is_read = llvm::any_of(result.getUsers(), [&](mlir::Operation* user) {
        return backward->getRegion(i).isAncestor(user->getParentRegion());
      });
      if (end != nullptr && !is_read) {
        mlir::OpBuilder builder(end);
        const mlir::NamedAttribute value(builder.getStringAttr("value"), zeros);
        end->setOperand(
            result.getResultNumber(),
            build(builder, end->getLoc(), "stablehlo.constant", {}, mlir::TypeRange(type), value)->getResult(0));
      }
    }
  }
}

// Replaces a choice by one with those of its results that are used.
void remove_unused_results(mlir::Operation* choice) {
  mlir::OperationState state(choice->getLoc(), choice->getName());
  std::vector<mlir::OpResult> kept;
  for (const mlir::OpResult result : choice->getResults()) {
    if (!result.use_empty()) {
      kept.push_back(result);
      state.addTypes(result.getType());
    }
  }
  state.addOperands(choice->getOperands());
  state.propertiesAttr = choice->getPropertiesAsAttribute();
  state.addAttributes(llvm::to_vector(choice->getDiscardableAttrs()));
  for (mlir::Region& region : choice->getRegions()) {
    for (const mlir::OpResult result : llvm::reverse(choice->getResults())) {
      if (result.use_empty()) {
        region.front().back().eraseOperand(result.getResultNumber());
      }
    }
    state.addRegion()->takeBody(region);
  }
  mlir::Operation* const now = mlir::OpBuilder(choice).create(state);
  for (const auto [old, result] : llvm::zip_equal(kept, now->getResults())) {
    mlir::Value(old).replaceAllUsesWith(result);
  }
  choice->erase();
}

// Whether a use stores a value: in a tensor that a loop carries, or as a result of a branch for a later choice.
bool is_stored(mlir::OpOperand& use) {
  mlir::Operation* const user = use.getOwner();
  mlir::Operation* const parent = user->getParentOp();
  const auto are_all_stored = [](mlir::Value value) {
    return !value.use_empty() && llvm::all_of(value.getUses(), is_stored);
  };
  if (kind(user) == OpKind::kReshape || kind(user) == OpKind::kBroadcastInDim) {
    return are_all_stored(user->getResult(0));
  }
  if (kind(user) == OpKind::kDynamicUpdateSlice) {
    const mlir::Value whole = user->getResult(0);
    return use.getOperandNumber() == 1 && kind(parent) == OpKind::kWhile &&
           llvm::all_of(whole.getUsers(), [&](mlir::Operation* end) { return end == &user->getBlock()->back(); });
  }
  if (user != &user->getBlock()->back() || !is_choice(parent)) {
    return false;
  }
  const auto is_read_by_choice = [&](mlir::OpOperand& outer) {
    mlir::Operation* const reader = parent->getBlock()->findAncestorOpInBlock(*outer.getOwner());
    return (reader != outer.getOwner() && is_choice(reader)) || is_stored(outer);
  };
  const mlir::Value result = parent->getResult(use.getOperandNumber());
  return !result.use_empty() && llvm::all_of(result.getUses(), is_read_by_choice);
}

// Whether a branch computes a result, rather than returning a value from outside.
bool is_computed_in_branch(mlir::OpResult result) {
  return llvm::any_of(result.getOwner()->getRegions(), [&](mlir::Region& region) {
    return region.front().back().getOperand(result.getResultNumber()).getParentRegion() == &region;
  });
}

// Where a branch returns result `number` of an earlier choice, which is a constant there, it returns the constant.
void copy_constants(mlir::Operation* earlier, unsigned number, mlir::OpResult result) {
  for (auto [i, region] : llvm::enumerate(result.getOwner()->getRegions())) {
    mlir::Operation* const end = &region.front().back();
    mlir::Block* const from = branch(earlier, static_cast<unsigned>(i));
    if (from == nullptr) {
      continue;
    }
    mlir::Value value = from->back().getOperand(number);
    const mlir::IRMapping none;
    Slice slice(*from, none);
    constexpr size_t kMost = 2;  // a constant, and its broadcast
    if (end->getOperand(result.getResultNumber()) == earlier->getResult(number) && slice.add(value) &&
        slice.operations.size() <= kMost) {
      mlir::OpBuilder builder(end);
      mlir::IRMapping copies;
      for (mlir::Operation& op : *from) {
        if (slice.operations.contains(&op)) {
          builder.clone(op, copies);
        }
      }
      end->setOperand(result.getResultNumber(), copies.lookupOrDefault(value));
    }
  }
}

bool compute_again(mlir::Operation* backward, int64_t first, const std::set<int64_t>& except, bool reads_stored) {
  bool any = false;
  for (mlir::Operation* const forward : earlier_choices(backward)) {
    bool is_changed = false;
    for (unsigned i = 0; i < backward->getNumRegions(); ++i, ++first) {
      is_changed =
          (!except.contains(first) && repeat_in_branch(forward, backward, i, first, reads_stored)) || is_changed;
    }
    if (is_changed) {
      return_zeros(forward, backward);
      remove_unused_results(forward);
      any = true;
    }
  }
  return any;
}

}  // namespace

bool is_split_off(mlir::Value value) {
  for (mlir::Value source = reshaped(value); source; source = reshaped(value)) {
    value = source;  // loops store entries with a dimension of size 1
  }
  mlir::Operation* const source = value.getDefiningOp();
  return source != nullptr && is_choice(source) && source->hasAttr(kSplitOff);
}

void forget_split_off(mlir::Operation* module) {
  module->walk([](mlir::Operation* op) { op->removeDiscardableAttr(kSplitOff); });
}

bool split_residuals_off(mlir::Operation* choice, int64_t first, const std::set<int64_t>& except) {
  if (!is_choice(choice) || choice->hasAttr(kSplitOff) || has_annotated_results(choice)) {
    return false;
  }
  llvm::SmallVector<mlir::Value> stored;
  std::vector<std::vector<mlir::OpOperand*>> stored_uses;
  for (const mlir::OpResult result : choice->getResults()) {
    if (!result.use_empty() && llvm::all_of(result.getUses(), is_stored)) {
      std::vector<mlir::OpOperand*>& uses = stored_uses.emplace_back();
      llvm::for_each(result.getUses(), [&](mlir::OpOperand& use) { uses.push_back(&use); });
      stored.push_back(result);
    }
  }
  if (stored.empty()) {
    return false;
  }
  mlir::OperationState state(choice->getLoc(), choice->getName());
  state.addOperands(choice->getOperands());
  state.addTypes(mlir::ValueRange(stored).getTypes());
  state.propertiesAttr = choice->getPropertiesAsAttribute();
  mlir::OpBuilder builder(choice->getContext());
  for (size_t i = 0; i < choice->getNumRegions(); ++i) {
    builder.setInsertionPointToStart(&state.addRegion()->emplaceBlock());
    build(builder, choice->getLoc(), "stablehlo.return", stored, {});
  }
  builder.setInsertionPointAfter(choice);
  mlir::Operation* const split_off = builder.create(state);
  if (!compute_again(split_off, first, except, true)) {
    split_off->erase();
    return false;
  }
  split_off->setDiscardableAttr(kSplitOff, builder.getUnitAttr());
  choice = split_off->getPrevNode();  // it was replaced
  for (const auto [uses, result] : llvm::zip_equal(stored_uses, split_off->getResults())) {
    if (is_computed_in_branch(result)) {
      copy_constants(choice, mlir::cast<mlir::OpResult>(uses.front()->get()).getResultNumber(), result);
      llvm::for_each(uses, [&](mlir::OpOperand* use) { use->set(result); });
    }
  }
  return_zeros(choice, split_off);
  remove_unused_results(choice);
  remove_unused_results(split_off);
  return true;
}

bool reads_earlier_choice(mlir::Operation* op) { return !earlier_choices(op).empty(); }

bool compute_branch_residuals_again(mlir::Operation* backward, int64_t first, const std::set<int64_t>& except) {
  return compute_again(backward, first, except, false);
}

}  // namespace flashlift::stablehlo
