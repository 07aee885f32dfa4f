#include "stablehlo/rearrange/weights.h"

#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"

namespace flashlift::stablehlo {

Broadcast source_of(mlir::Value value) {
  Broadcast found{.source = value, .dims = {}};
  for (size_t d = 0; d < shape(value).size(); ++d) {
    found.dims.push_back(static_cast<int64_t>(d));
  }
  while (mlir::Operation* op = found.source.getDefiningOp()) {
    if (kind(op) != OpKind::kBroadcastInDim) {
      break;
    }
    std::vector<int64_t> dims;
    for (const auto [d, to] : llvm::enumerate(broadcast_dims(op))) {
      dims.push_back(size_of(op->getOperand(0), static_cast<int64_t>(d)) == 1 ? -1
                                                                              : found.dims[static_cast<size_t>(to)]);
    }
    found = {.source = op->getOperand(0), .dims = std::move(dims)};
  }
  for (size_t d = 0; d < found.dims.size(); ++d) {
    found.dims[d] = shape(found.source)[d] == 1 ? -1 : found.dims[d];
  }
  return found;
}

Factor factor_at(mlir::Operation* product, unsigned side) {
  mlir::Operation* const op = product->getOperand(side).getDefiningOp();
  if (op == nullptr || kind(op) != OpKind::kConvert) {
    return {.op = op, .rounds = nullptr};
  }
  return {.op = op->getOperand(0).getDefiningOp(), .rounds = op};
}

bool may_be_weighted(mlir::Value value) {
  const auto type = dtype(value.getType());
  return type == DType::kF32 || type == DType::kBF16;
}

}  // namespace flashlift::stablehlo
