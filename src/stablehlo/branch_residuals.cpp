#include "stablehlo/branch_residuals.h"

#include <optional>
#include <utility>
#include <vector>

#include "llvm/ADT/SetVector.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "stablehlo/lift/candidates.h"
#include "stablehlo/lift/same_value.h"
#include "stablehlo/loop_residuals.h"
#include "stablehlo/manual_computations.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"

namespace flashlift::stablehlo {
namespace {

bool is_choice(mlir::Operation* op) { return op != nullptr && (kind(op) == OpKind::kCase || kind(op) == OpKind::kIf); }

// The earlier choices on the same index whose results the branches of this one read.
llvm::SetVector<mlir::Operation*> earlier_choices(mlir::Operation* choice) {
  llvm::SetVector<mlir::Operation*> found;
  if (!is_choice(choice)) {
    return found;
  }
  choice->walk([&](mlir::Operation* inner) {
    for (const mlir::Value operand : inner->getOperands()) {
      mlir::Operation* const source = operand.getDefiningOp();
      // Annotations of the earlier choice's results would have to change with them.
      if (inner != choice && is_choice(source) && source->getBlock() == choice->getBlock() && !found.contains(source) &&
          source->getName() == choice->getName() && source->getNumRegions() == choice->getNumRegions() &&
          !source->hasAttr("sdy.sharding") && !source->hasAttr("mhlo.sharding") &&
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

// Lets one branch do so. Returns whether anything has changed.
bool repeat_in_branch(mlir::Operation* forward, mlir::Operation* backward, unsigned number, int64_t product_number) {
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
      if (is_of_attention(value) || is_factor_of_scores(value) || is_mask(value)) {
        repeated.emplace_back(value, result);
      } else {
        known.map(value, mlir::Value(result));
      }
    }
  }
  Slice slice(*from, known);
  const bool is_any_near = llvm::any_of(repeated, [](const auto& each) { return is_near_softmax(each.first); });
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
    mlir::Value same = value.getParentBlock() == from ? known.lookupOrNull(value) : value;
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

}  // namespace

bool reads_earlier_choice(mlir::Operation* op) { return !earlier_choices(op).empty(); }

bool compute_branch_residuals_again(mlir::Operation* backward, int64_t first, const std::set<int64_t>& except) {
  bool any = false;
  for (mlir::Operation* const forward : earlier_choices(backward)) {
    bool is_changed = false;
    for (unsigned i = 0; i < backward->getNumRegions(); ++i, ++first) {
      is_changed = (!except.contains(first) && repeat_in_branch(forward, backward, i, first)) || is_changed;
    }
    if (is_changed) {
      return_zeros(forward, backward);
      remove_unused_results(forward);
      any = true;
    }
  }
  return any;
}

}  // namespace flashlift::stablehlo
