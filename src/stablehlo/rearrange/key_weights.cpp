#include <algorithm>

#include "stablehlo/lift/candidates.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"
#include "stablehlo/rearrange/rearrange.h"
#include "stablehlo/rearrange/weights.h"

namespace flashlift::stablehlo {

std::optional<Rearrangement> move_weights_to_values(mlir::Operation* product) {
  if (!is_product(product) || kind(product) != OpKind::kDotGeneral) {
    return std::nullopt;
  }
  for (unsigned side = 0; side < 2; ++side) {
    const auto [weighted, rounds] = factor_at(product, side);
    if (weighted == nullptr || kind(weighted) != OpKind::kMultiply || weighted->getBlock() != product->getBlock()) {
      continue;
    }
    const mlir::Value values = product->getOperand(1 - side);
    const OperandDims own = operand_dims(product, side);
    const OperandDims others = operand_dims(product, 1 - side);
    if (!may_be_weighted(values) || !may_be_weighted(weighted->getResult(0))) {
      continue;
    }
    for (unsigned which = 0; which < 2; ++which) {
      const mlir::Value weights = weighted->getOperand(which);
      const Broadcast broadcast = source_of(weights);
      llvm::SmallVector<int64_t> sizes;
      llvm::SmallVector<int64_t> dims;
      bool is_of_keys = false;
      bool fits = true;
      for (const auto [d, dim] : llvm::enumerate(broadcast.dims)) {
        if (dim < 0) {
          continue;
        }
        const auto batch = std::find(own.batch.begin(), own.batch.end(), dim);
        const auto key = std::find(own.contract.begin(), own.contract.end(), dim);
        is_of_keys = is_of_keys || key != own.contract.end();
        fits = fits && (batch != own.batch.end() || key != own.contract.end());
        if (fits) {
          sizes.push_back(shape(broadcast.source)[d]);
          dims.push_back(batch != own.batch.end() ? others.batch[static_cast<size_t>(batch - own.batch.begin())]
                                                  : others.contract[static_cast<size_t>(key - own.contract.begin())]);
        }
      }
      if (!fits || !is_of_keys || is_near_softmax(broadcast.source)) {  // values must not depend on the scores
        continue;
      }
      Rearrangement found;
      Builder builder(product, found.added);
      const mlir::Location location = product->getLoc();
      const mlir::Type element = static_tensor(weighted->getResult(0)).getElementType();
      const mlir::Value wide = builder.convert(location, values, element);
      const mlir::Value source = builder.reshape(location, broadcast.source, sizes);
      const mlir::Value scales =
          builder.broadcast(location, source, mlir::cast<mlir::RankedTensorType>(wide.getType()), dims);
      mlir::Value operands[2];
      operands[1 - side] =
          builder.convert(location, builder.multiply(location, wide, scales), static_tensor(values).getElementType());
      operands[side] = weighted->getOperand(1 - which);
      if (rounds) {
        operands[side] = builder.like(rounds, operands[side], rounds->getResult(0).getType());
      }
      const mlir::Value result = builder.like(product, operands, product->getResult(0).getType());
      found.product = result.getDefiningOp();
      replace(found, product->getResult(0), result);
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace flashlift::stablehlo
