// A walk over operations, from results to operands or to users.
#pragma once

#include <vector>

#include "llvm/ADT/DenseSet.h"
#include "mlir/IR/Operation.h"

namespace flashlift::stablehlo {

using OperationStack = std::vector<mlir::Operation*>;

// Whether is_wanted(op, stack) returns true for one of the first `farthest` operations of the walk. It is called once
// per operation, the last one on the stack first, and pushes the operations to visit next. Null pointers, which are the
// definitions of arguments, are skipped.
template <typename IsWanted>
bool any_operation(OperationStack stack, size_t farthest, const IsWanted& is_wanted) {
  llvm::DenseSet<mlir::Operation*> seen;
  while (!stack.empty() && seen.size() < farthest) {
    mlir::Operation* op = stack.back();
    stack.pop_back();
    if (op != nullptr && seen.insert(op).second && is_wanted(op, stack)) {
      return true;
    }
  }
  return false;
}

// Pushes the definitions of all operands.
inline void push_definitions(mlir::Operation* op, OperationStack& stack) {
  for (const mlir::Value operand : op->getOperands()) {
    stack.push_back(operand.getDefiningOp());
  }
}

}  // namespace flashlift::stablehlo
