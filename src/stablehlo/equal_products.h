// Backward passes that compute the scores again: their product of queries and keys is the forward pass's.
#pragma once

#include <utility>
#include <vector>

#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"

namespace flashlift::stablehlo {

// Uses of equal products' results, which another product's result has taken over.
struct MergedProducts {
  std::vector<std::pair<mlir::OpOperand*, mlir::Value>> uses;  // with what they read before
  std::vector<mlir::Operation*> products;                      // that were merged into the other one

  bool empty() const { return products.empty(); }
};

// Of `others`, the products behind `product` in its block that are computed alike. To be given those whose exponentials
// nobody sums: they read the log-sum-exp of `product`, if they are scores. A checkpointed layer, which computes its
// whole softmax again, is an attention by itself.
MergedProducts merge_equal_products(mlir::Operation* product, const std::vector<mlir::Operation*>& others);
void take_back(const MergedProducts& merged);

}  // namespace flashlift::stablehlo
