#include "stablehlo/lift/depends_on.h"

namespace flashlift::stablehlo {

std::optional<bool> DependsOn::known(mlir::Operation* op) const {
  if (op == product_) {
    return true;
  }
  // Operations before the product, or in a block around its own, do not depend on it.
  if (op == nullptr || op->getBlock() != product_->getBlock() || op->isBeforeInBlock(product_) ||
      llvm::is_contained(barriers_, op)) {
    return false;
  }
  const auto found = known_.find(op);
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

// Uses no recursion, because a chain of operations may be as long as the module.
bool DependsOn::operator()(mlir::Operation* op) {
  std::vector<mlir::Operation*> pending{op};
  while (!pending.empty()) {
    mlir::Operation* next = pending.back();
    if (known(next)) {
      pending.pop_back();
      continue;
    }
    bool depends = false;
    const size_t others = pending.size();
    for (const mlir::Value value : next->getOperands()) {
      mlir::Operation* definition = value.getDefiningOp();
      const std::optional<bool> operand = known(definition);
      if (operand == true) {
        depends = true;
        pending.resize(others);
        break;
      }
      if (!operand) {
        pending.push_back(definition);
      }
    }
    if (pending.size() == others) {
      known_[next] = depends;
      pending.pop_back();
    }
  }
  return *known(op);
}

}  // namespace flashlift::stablehlo
