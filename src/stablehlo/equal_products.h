// Merges recomputed products: a backward pass that recomputes the scores has the forward pass's product of queries and
// keys a second time.
#pragma once

#include <utility>
#include <vector>

#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"

namespace flashlift::stablehlo {

// Uses of products that were merged into an equal product.
struct MergedProducts {
  std::vector<std::pair<mlir::OpOperand*, mlir::Value>> uses;  // with the value that they used before
  std::vector<mlir::Operation*> products;                      // that were merged into the other one

  bool empty() const { return products.empty(); }
};

// Those of `others` that come after `product` in its block and compute the same. Pass only products whose exponentials
// are not summed: if these are scores, they use the log-sum-exp of `product`. A checkpointed layer, which recomputes
// its whole softmax, is an attention of its own.
MergedProducts merge_equal_products(mlir::Operation* product, const std::vector<mlir::Operation*>& others);
void take_back(const MergedProducts& merged);

}  // namespace flashlift::stablehlo
