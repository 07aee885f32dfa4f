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
    bool depends = false;
    bool complete = true;
    for (size_t i = 0; !known(next) && i < next->getNumOperands(); ++i) {
      mlir::Operation* definition = next->getOperand(static_cast<unsigned>(i)).getDefiningOp();
      const std::optional<bool> operand = known(definition);
      depends = depends || operand.value_or(false);
      if (!operand) {
        pending.push_back(definition);
        complete = false;
      }
    }
    if (complete || known(next)) {
      if (!known(next)) {
        known_[next] = depends;
      }
      pending.pop_back();
    }
  }
  return *known(op);
}

}  // namespace flashlift::stablehlo
