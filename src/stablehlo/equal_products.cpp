#include "stablehlo/equal_products.h"

namespace flashlift::stablehlo {

MergedProducts merge_equal_products(mlir::Operation* product, const std::vector<mlir::Operation*>& others,
                                    SameValues::Barriers barriers) {
  MergedProducts merged;
  const mlir::Value scores = product->getResult(0);
  SameValues are_same(barriers);
  for (mlir::Operation* other : others) {
    if (other == product || other->getBlock() != product->getBlock() ||
        other->getResult(0).getType() != scores.getType() || !product->isBeforeInBlock(other) ||
        !are_same(scores, other->getResult(0))) {
      continue;
    }
    for (mlir::OpOperand& use : other->getResult(0).getUses()) {
      merged.uses.emplace_back(&use, other->getResult(0));
    }
    merged.products.push_back(other);
  }
  for (const auto& [use, before] : merged.uses) {
    use->set(scores);
  }
  return merged;
}

void take_back(const MergedProducts& merged) {
  for (const auto& [use, before] : merged.uses) {
    use->set(before);
  }
}

}  // namespace flashlift::stablehlo
