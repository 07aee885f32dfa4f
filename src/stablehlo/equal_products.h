// Merges recomputed products: a backward pass that recomputes the scores has the forward pass's product of queries and
// keys a second time.
#pragma once

#include <utility>
#include <vector>

#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"
#include "stablehlo/lift/same_value.h"

namespace flashlift::stablehlo {

// Uses of products that were merged into an equal product.
struct MergedProducts {
  std::vector<std::pair<mlir::OpOperand*, mlir::Value>> uses;  // with the value that they used before
  std::vector<mlir::Operation*> products;                      // that were merged into the other one

  bool empty() const { return products.empty(); }
};

// Those of `others` that come after `product` in its block and compute the same. A checkpointed layer, which recomputes
// its whole softmax after a barrier, is an attention of its own: ignore barriers only for products whose exponentials
// are not summed. If these are scores, they use the log-sum-exp of `product`.
MergedProducts merge_equal_products(mlir::Operation* product, const std::vector<mlir::Operation*>& others,
                                    SameValues::Barriers barriers);
void take_back(const MergedProducts& merged);

}  // namespace flashlift::stablehlo
