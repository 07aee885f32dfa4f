// Products that are multiplications: of probabilities with weights, as einsum("bhqk,h->bhqk") is lowered, and in the
// gradient of these weights, where the multiplication is also summed, as einsum("bhqk,bhqk->h").

#include <algorithm>

#include "stablehlo/lift/products.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"
#include "stablehlo/rearrange/rearrange.h"

namespace flashlift::stablehlo {
namespace {

// The operand before a transpose, whose dimensions `dims` then names.
mlir::Value before_transpose(mlir::Value operand, OperandDims& dims) {
  mlir::Operation* const transpose = defining(operand, OpKind::kTranspose);
  if (transpose == nullptr) {
    return operand;
  }
  for (std::vector<int64_t>* some : {&dims.batch, &dims.contract, &dims.free}) {
    for (int64_t& dim : *some) {
      dim = permutation(transpose)[static_cast<size_t>(dim)];
    }
  }
  return transpose->getOperand(0);
}

}  // namespace

std::optional<Rearrangement> product_as_multiplied_sum(mlir::Operation* product) {
  if (!is_product(product) || kind(product) != OpKind::kDotGeneral) {
    return std::nullopt;
  }
  OperandDims dims[2] = {operand_dims(product, 0), operand_dims(product, 1)};
  const auto type = static_tensor(product->getResult(0));
  const auto element = dtype(type);
  if (dims[0].contract.empty() || !dims[0].free.empty() || !dims[1].free.empty() ||
      static_tensor(product->getOperand(0)).getElementType() !=
          static_tensor(product->getOperand(1)).getElementType() ||
      (element != DType::kF32 && element != DType::kBF16 && element != DType::kF16)) {
    return std::nullopt;
  }
  mlir::Value operands[2];
  for (const unsigned side : {0U, 1U}) {
    operands[side] = before_transpose(product->getOperand(side), dims[side]);
  }
  // In the order of the left operand's dimensions, of which `summed` are summed.
  std::vector<int64_t> order(shape(operands[0]).size());
  std::vector<int64_t> summed = dims[0].contract;
  std::sort(summed.begin(), summed.end());
  for (size_t i = 0; i < summed.size(); ++i) {
    order[static_cast<size_t>(dims[0].contract[i])] = dims[1].contract[i];
  }
  for (size_t i = 0; i < dims[0].batch.size(); ++i) {
    order[static_cast<size_t>(dims[0].batch[i])] = dims[1].batch[i];
  }
  Rearrangement found;
  Builder builder(product, found.added);
  const mlir::Location location = product->getLoc();
  // A product does not round its terms to 16 bits.
  const auto widened = [&](unsigned side) {
    return builder.convert(location, operands[side], mlir::Float32Type::get(product->getContext()));
  };
  const mlir::Value terms = builder.multiply(location, widened(0), builder.transpose(location, widened(1), order));
  const mlir::Value sum = builder.sum(location, terms, summed);
  std::vector<int64_t> kept = dims[0].batch;  // the sum's dimensions, by the product's
  for (int64_t& dim : kept) {
    dim -= std::lower_bound(summed.begin(), summed.end(), dim) - summed.begin();
  }
  found.product = terms.getDefiningOp();
  replace(found, product->getResult(0),
          builder.convert(location, builder.transpose(location, sum, kept), type.getElementType()));
  return found;
}

std::optional<Rearrangement> weight_product_as_multiplication(mlir::Operation* product) {
  if (!is_product(product) || kind(product) != OpKind::kDotGeneral) {
    return std::nullopt;
  }
  OperandDims dims[2] = {operand_dims(product, 0), operand_dims(product, 1)};
  // Where each operand has dimensions of its own, a product that sums nothing gives scores of a depth of 1.
  if (!dims[0].contract.empty() || (!dims[0].free.empty() && !dims[1].free.empty())) {
    return std::nullopt;
  }
  const auto type = static_tensor(product->getResult(0));
  const auto element = dtype(type);
  if (element != DType::kF32 && element != DType::kBF16 && element != DType::kF16) {
    return std::nullopt;
  }
  // The multiplication is of probabilities or their gradient in their own order, as with other weights: einsum
  // transposes them for its product.
  const unsigned of = dims[0].free.empty() ? 1 : 0;
  mlir::Value weighted = before_transpose(product->getOperand(of), dims[of]);
  std::vector<std::pair<int64_t, int64_t>> shared;  // dimensions of what is weighted, and of the weights
  for (size_t i = 0; i < dims[of].batch.size(); ++i) {
    shared.emplace_back(dims[of].batch[i], dims[1 - of].batch[i]);
  }
  std::sort(shared.begin(), shared.end());
  std::vector<int64_t> to;
  std::vector<int64_t> from;
  for (const auto& [dim, of_weights] : shared) {
    to.push_back(dim);
    from.push_back(of_weights);
  }
  std::vector<int64_t> order = dims[of].batch;  // of the result
  order.insert(order.end(), dims[of].free.begin(), dims[of].free.end());
  Rearrangement found;
  Builder builder(product, found.added);
  const mlir::Location location = product->getLoc();
  weighted = builder.convert(location, weighted, type.getElementType());
  const mlir::Value weights =
      builder.transpose(location, builder.convert(location, product->getOperand(1 - of), type.getElementType()), from);
  const mlir::Value result = builder.multiply(
      location, weighted,
      builder.broadcast(location, weights, mlir::cast<mlir::RankedTensorType>(weighted.getType()), to));
  found.product = result.getDefiningOp();
  for (mlir::Operation* user : llvm::make_early_inc_range(product->getResult(0).getUsers())) {
    if (kind(user) == OpKind::kTranspose) {
      std::vector<int64_t> both;
      for (const int64_t dim : permutation(user)) {
        both.push_back(order[static_cast<size_t>(dim)]);
      }
      replace(found, user->getResult(0), builder.transpose(location, result, both));
    }
  }
  replace(found, product->getResult(0), builder.transpose(location, result, order));
  return found;
}

}  // namespace flashlift::stablehlo
