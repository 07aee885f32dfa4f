#include "stablehlo/loop_carries.h"

#include <limits>
#include <optional>
#include <vector>

#include "llvm/ADT/SetVector.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "stablehlo/lift/candidates.h"
#include "stablehlo/lift/walk.h"
#include "stablehlo/reader/normalize.h"
#include "stablehlo/sharding.h"

namespace flashlift::stablehlo {
namespace {

std::vector<mlir::Operation*> loops_of(Module& module) {
  std::vector<mlir::Operation*> loops;
  module.op()->walk<mlir::WalkOrder::PreOrder>([&](mlir::Operation* op) {
    if (is_regular(op)) {
      loops.push_back(op);
    }
  });
  return loops;
}

bool may_be_erased(mlir::Operation* op) { return op->use_empty() && (is_removable(op) || is_annotation(op)); }

// Which carried values results, conditions or operations with effects depend on.
std::vector<bool> used_carries(mlir::Operation* loop) {
  mlir::Block& body = block(loop, 1);
  mlir::Operation* const end = &body.back();
  std::vector<bool> used(loop->getNumOperands());
  llvm::SetVector<mlir::Operation*> reached;
  std::vector<mlir::Value> pending;
  const auto use = [&](unsigned carry) {
    if (!used[carry]) {
      used[carry] = true;
      pending.push_back(end->getOperand(carry));
    }
  };
  const auto reach = [&](mlir::Operation* op) {
    if (reached.insert(op)) {
      op->walk([&](mlir::Operation* inner) { llvm::append_range(pending, inner->getOperands()); });
    }
  };
  for (unsigned carry = 0; carry < used.size(); ++carry) {
    if (!loop->getResult(carry).use_empty() || !block(loop, 0).getArgument(carry).use_empty()) {
      use(carry);
    }
  }
  for (mlir::Operation& op : body) {
    if (&op != end && !is_removable(&op) && !is_annotation(&op)) {
      reach(&op);
    }
  }
  while (!pending.empty()) {
    const mlir::Value value = pending.back();
    pending.pop_back();
    if (const auto argument = mlir::dyn_cast<mlir::BlockArgument>(value)) {
      if (argument.getOwner() == &body) {
        use(argument.getArgNumber());
      }
    } else if (mlir::Operation* op = body.findAncestorOpInBlock(*value.getDefiningOp())) {
      reach(op);
    }
  }
  return used;
}

// Replaces a loop by one whose regions already have their arguments and results.
mlir::Operation* rebuilt(mlir::Operation* loop, mlir::ValueRange starts, llvm::ArrayRef<mlir::OpResult> results) {
  mlir::OperationState state(loop->getLoc(), loop->getName());
  state.addOperands(starts);
  state.addTypes(starts.getTypes());
  state.propertiesAttr = loop->getPropertiesAsAttribute();
  state.addAttributes(llvm::to_vector(loop->getDiscardableAttrs()));
  for (mlir::Region& region : loop->getRegions()) {
    state.addRegion()->takeBody(region);
  }
  mlir::Operation* const now = mlir::OpBuilder(loop).create(state);
  for (const auto [old, result] : llvm::zip(results, now->getResults())) {
    mlir::Value(old).replaceAllUsesWith(result);
  }
  loop->erase();
  return now;
}

// Returns whether there were any.
bool remove_unused_carries(mlir::Operation* loop) {
  if (has_annotated_results(loop)) {
    return false;
  }
  for (mlir::Operation* user : llvm::make_early_inc_range(loop->getUsers())) {
    if (is_annotation(user) && may_be_erased(user)) {
      user->erase();
    }
  }
  const std::vector<bool> used = used_carries(loop);
  if (llvm::all_of(used, [](bool is_used) { return is_used; })) {
    return false;
  }
  mlir::Block& body = block(loop, 1);
  llvm::SmallVector<mlir::Value> starts;
  llvm::SmallVector<mlir::OpResult> results;
  llvm::SetVector<mlir::Operation*> annotated;  // starts that are left out
  for (unsigned carry = 0; carry < used.size(); ++carry) {
    mlir::Value start = loop->getOperand(carry);
    if (used[carry]) {
      starts.push_back(start);
      results.push_back(loop->getResult(carry));
    } else if (start.getDefiningOp() != nullptr && is_annotation(start.getDefiningOp())) {
      annotated.insert(start.getDefiningOp());
    }
  }
  for (unsigned carry = loop->getNumOperands(); carry-- > 0;) {
    if (!used[carry]) {
      body.back().eraseOperand(carry);
    }
  }
  // What is left of the uses is in operations that nothing depends on.
  for (mlir::Operation& op : llvm::make_early_inc_range(llvm::reverse(body))) {
    if (may_be_erased(&op)) {
      op.erase();
    }
  }
  for (unsigned carry = loop->getNumOperands(); carry-- > 0;) {
    if (!used[carry]) {
      body.eraseArgument(carry);
      block(loop, 0).eraseArgument(carry);
    }
  }
  rebuilt(loop, starts, results);
  for (mlir::Operation* annotation : annotated) {
    if (may_be_erased(annotation)) {
      annotation->erase();
    }
  }
  return true;
}

// Whether an exponential is computed from an operation's result, with no product in between. A backward pass may
// compute probabilities from the log-sum-exp, without a sum.
bool leads_to_exponential(mlir::Operation* op) {
  constexpr size_t kFarthest = 50;
  return any_operation({op}, kFarthest, [](mlir::Operation* each, OperationStack& stack) {
    if (!is_dot(each)) {
      stack.insert(stack.end(), each->user_begin(), each->user_end());
    }
    return kind(each) == OpKind::kExponential;
  });
}

// Whether an operation that uses the value is near a softmax: before it, as a mask is, or behind it, as dropout is.
bool feeds_softmax(mlir::Value value) {
  return llvm::any_of(value.getUses(), [](mlir::OpOperand& use) {
    mlir::Operation* const user = use.getOwner();
    if (is_regular(user)) {
      return feeds_softmax(block(user, 1).getArgument(use.getOperandNumber()));
    }
    return user->getNumResults() == 1 && !is_dot(user) &&
           (is_near_softmax(user->getResult(0)) || leads_to_exponential(user));
  });
}

// Whether the value is concatenated with others, as sinks are with scores.
bool is_concatenated(mlir::Value value) {
  return llvm::any_of(value.getUses(), [](mlir::OpOperand& use) {
    mlir::Operation* const user = use.getOwner();
    return is_regular(user) ? is_concatenated(block(user, 1).getArgument(use.getOperandNumber()))
                            : kind(user) == OpKind::kConcatenate;
  });
}

// How a tensor is computed from smaller tensors.
struct MaskComputation {
  llvm::SetVector<mlir::Operation*> operations;
  llvm::SetVector<mlir::Value> smaller;
};

constexpr int64_t kTimesSmaller = 8;

int64_t elements(mlir::Value value) {
  return static_tensor(value) ? static_tensor(value).getNumElements() : std::numeric_limits<int64_t>::max();
}

// Of a tensor that repeats a smaller one.
std::optional<MaskComputation> repetition(mlir::Value tensor) {
  MaskComputation found;
  mlir::Value value = tensor;
  for (mlir::Operation* op = value.getDefiningOp(); op != nullptr && op->getBlock() == tensor.getParentBlock();
       op = value.getDefiningOp()) {
    if (kind(op) != OpKind::kBroadcastInDim && kind(op) != OpKind::kReshape && kind(op) != OpKind::kConvert) {
      break;
    }
    found.operations.insert(op);
    value = op->getOperand(0);
  }
  found.smaller.insert(value);
  return elements(value) <= elements(tensor) / kTimesSmaller ? std::optional(found) : std::nullopt;
}

// Of a tensor that is computed from constants and smaller tensors of integers, such as lengths or segments. (Biases
// that are computed from tables stay tensors, since their gradients may be.)
std::optional<MaskComputation> mask_computation(mlir::Value tensor) {
  constexpr size_t kMost = 64;
  constexpr int64_t kLargestLiteral = 4096;  // elements; a module would hold larger ones twice
  MaskComputation found;
  llvm::SmallVector<mlir::Value> pending = {tensor};
  while (!pending.empty()) {
    mlir::Value value = pending.pop_back_val();
    const int64_t size = elements(value);
    mlir::Operation* const op = value.getDefiningOp();
    const auto literal = constant(value);
    const bool is_short = literal && (literal.isSplat() || size <= kLargestLiteral);
    const bool is_copied = op != nullptr && op->getBlock() == tensor.getParentBlock() && op->getNumRegions() == 0 &&
                           op->getNumResults() == 1 && is_removable(op) && !is_dot(op) &&
                           found.operations.size() < kMost && (kind(op) != OpKind::kConstant || is_short);
    if (is_short && !is_copied) {
      continue;  // from outside of an outer loop, where the body can read it, too
    }
    if (is_copied) {
      if (found.operations.insert(op)) {
        llvm::append_range(pending, op->getOperands());
      }
    } else if (static_tensor(value) && static_tensor(value).getElementType().isInteger() &&
               size <= elements(tensor) / kTimesSmaller) {
      found.smaller.insert(value);
    } else {
      return std::nullopt;
    }
  }
  return found;
}

// Computes tensors in the body of a loop. Returns the smaller tensors that the loop must carry, too.
std::vector<mlir::Value> move_masks_into(mlir::Operation* loop) {
  mlir::Block& body = block(loop, 1);
  mlir::OpBuilder builder = mlir::OpBuilder::atBlockBegin(&body);
  std::vector<mlir::Value> carried;
  mlir::IRMapping copies;
  const auto is_invariant = [&](unsigned carry) { return body.back().getOperand(carry) == body.getArgument(carry); };
  for (unsigned carry = 0; carry < loop->getNumOperands(); ++carry) {
    mlir::Value tensor = loop->getOperand(carry);
    mlir::Value argument = body.getArgument(carry);
    // A number may be that of dropout's rate, which is carried next to the mask that it is for.
    const bool is_wanted = is_invariant(carry) && (elements(tensor) == 1 || feeds_softmax(argument));
    auto computation = is_wanted ? mask_computation(tensor) : std::nullopt;
    if (!computation && is_invariant(carry) && is_concatenated(argument)) {
      computation = repetition(tensor);  // a sink must show that all rows have the same
    }
    if (!computation || computation->operations.empty()) {
      continue;
    }
    for (const mlir::Value smaller : computation->smaller) {
      if (!copies.contains(smaller)) {
        copies.map(smaller, mlir::Value(body.addArgument(smaller.getType(), smaller.getLoc())));
        carried.push_back(smaller);
      }
    }
    for (mlir::Operation& op : *tensor.getParentBlock()) {
      if (computation->operations.contains(&op) && !copies.contains(op.getResult(0))) {
        builder.clone(op, copies);
      }
    }
  }
  // Also what a mask was computed from, such as segments, of which the body may compute the same mask itself.
  for (unsigned carry = 0; carry < loop->getNumOperands(); ++carry) {
    if (const mlir::Value copy = copies.lookupOrNull(loop->getOperand(carry)); copy && is_invariant(carry)) {
      mlir::Value(body.getArgument(carry)).replaceUsesWithIf(copy, [&](mlir::OpOperand& use) {
        return use.getOwner() != &body.back();
      });
    }
  }
  return carried;
}

}  // namespace

mlir::Operation* with_invariants(mlir::Operation* loop, mlir::ValueRange starts) {
  if (starts.empty()) {
    return loop;
  }
  mlir::Block& body = block(loop, 1);
  llvm::SmallVector<mlir::Value> all(loop->getOperands());
  llvm::append_range(all, starts);
  for (const mlir::Value start : starts) {
    block(loop, 0).addArgument(start.getType(), start.getLoc());
  }
  body.back().insertOperands(loop->getNumOperands(), body.getArguments().drop_front(loop->getNumOperands()));
  return rebuilt(loop, all, llvm::to_vector(loop->getResults()));
}

void remove_unused_carries(Module& module) {
  for (bool any = true; any;) {  // a loop may have been what used another one's results
    any = false;
    const std::vector<mlir::Operation*> loops = loops_of(module);
    for (mlir::Operation* loop : llvm::reverse(loops)) {  // inner ones first: an outer one may erase them
      any = remove_unused_carries(loop) || any;
    }
    remove_dead_code(module);
  }
}

void move_masks_into_loops(Module& module) {
  for (mlir::Operation* loop : loops_of(module)) {
    if (!has_annotated_results(loop)) {
      with_invariants(loop, move_masks_into(loop));
    }
  }
}

}  // namespace flashlift::stablehlo
