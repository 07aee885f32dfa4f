// Matrix products written as a multiplication and a sum: (q * k).sum(-1), (p[..., None] * v).sum(-2).

#include <algorithm>
#include <numeric>

#include "stablehlo/lift/products.h"
#include "stablehlo/lift/walk.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"
#include "stablehlo/rearrange/rearrange.h"
#include "stablehlo/rearrange/weights.h"

namespace flashlift::stablehlo {
namespace {

struct Side {
  mlir::Value source;
  std::vector<int64_t> dims;  // of the multiplication, for each of the source's whose size is not 1

  explicit Side(mlir::Value operand) {
    Broadcast broadcast = source_of(operand);
    source = broadcast.source;
    dims = std::move(broadcast.dims);
    std::erase(dims, -1);
  }
  bool has(int64_t dim) const { return std::find(dims.begin(), dims.end(), dim) != dims.end(); }
  // The positions of these dimensions in the source, not counting its dimensions of size 1.
  std::vector<int64_t> places_of(const std::vector<int64_t>& some) const {
    std::vector<int64_t> places;
    for (const int64_t dim : some) {
      places.push_back(std::find(dims.begin(), dims.end(), dim) - dims.begin());
    }
    return places;
  }
};

// Whether a value depends on an exponential, without a product in between.
bool is_of_exponential(mlir::Value value) {
  constexpr size_t kFarthest = 100;
  return any_operation({value.getDefiningOp()}, kFarthest, [](mlir::Operation* op, OperationStack& stack) {
    if (is_product(op)) {
      return false;
    }
    push_definitions(op, stack);
    return kind(op) == OpKind::kExponential;
  });
}

}  // namespace

std::optional<Rearrangement> multiplied_sum_as_product(mlir::Operation* sum) {
  const auto how = kind(sum) == OpKind::kReduce ? reduction(sum) : std::nullopt;
  if (!how || how->reducer != Reducer::kAdd || how->inputs.size() != 1 || splat(how->inits[0]) != 0.0 ||
      dtype(sum->getResult(0).getType()) != DType::kF32 || !static_tensor(sum->getResult(0))) {
    return std::nullopt;
  }
  mlir::Operation* widened = defining(how->inputs[0], OpKind::kConvert);  // from bf16 or f16
  mlir::Operation* const multiply =
      defining(widened != nullptr ? widened->getOperand(0) : how->inputs[0], OpKind::kMultiply);
  if (multiply == nullptr || multiply->getBlock() != sum->getBlock() || !static_tensor(multiply->getResult(0))) {
    return std::nullopt;
  }
  const auto element = dtype(multiply->getResult(0).getType());
  if (element != DType::kF32 && element != DType::kBF16 && element != DType::kF16) {
    return std::nullopt;
  }
  const Side sides[2] = {Side(multiply->getOperand(0)), Side(multiply->getOperand(1))};
  std::vector<int64_t> batch;
  std::vector<int64_t> contract;
  std::vector<int64_t> free[2];
  const auto sizes = shape(multiply->getResult(0));
  for (int64_t dim = 0; dim < static_cast<int64_t>(sizes.size()); ++dim) {
    const bool in[2] = {sides[0].has(dim), sides[1].has(dim)};
    const bool is_summed = llvm::is_contained(how->dims, dim);
    if (is_summed && in[0] && in[1]) {
      contract.push_back(dim);
    } else if (is_summed && sizes[static_cast<size_t>(dim)] != 1) {
      return std::nullopt;
    } else if (in[0] && in[1]) {
      batch.push_back(dim);
    } else if (in[0] || in[1]) {
      free[in[0] ? 0 : 1].push_back(dim);
    }
  }
  // A sum of exponentials times a mask is a row sum, not a product. A sum in which nothing is broadcast is not a
  // product either.
  if (contract.empty() || (free[0].empty() && free[1].empty()) ||
      (free[0].empty() && is_of_exponential(sides[1].source)) ||
      (free[1].empty() && is_of_exponential(sides[0].source))) {
    return std::nullopt;
  }
  Rearrangement found;
  Builder builder(sum, found.added);
  const mlir::Location location = sum->getLoc();
  mlir::Value operands[2];
  for (const unsigned side : {0U, 1U}) {
    std::vector<int64_t> own;
    for (const int64_t dim : sides[side].dims) {
      own.push_back(sizes[static_cast<size_t>(dim)]);
    }
    operands[side] = builder.reshape(location, sides[side].source, own);
  }
  std::vector<int64_t> order = batch;
  order.insert(order.end(), free[0].begin(), free[0].end());
  order.insert(order.end(), free[1].begin(), free[1].end());
  std::vector<int64_t> product_sizes;
  for (const int64_t dim : order) {
    product_sizes.push_back(sizes[static_cast<size_t>(dim)]);
  }
  const auto type = static_tensor(sum->getResult(0));
  const mlir::Value product = builder.dot(location, operands[0], operands[1],
                                          {.lhs_batch = sides[0].places_of(batch),
                                           .rhs_batch = sides[1].places_of(batch),
                                           .lhs_contract = sides[0].places_of(contract),
                                           .rhs_contract = sides[1].places_of(contract)},
                                          type.clone(product_sizes));
  std::vector<int64_t> permutation(order.size());
  std::iota(permutation.begin(), permutation.end(), 0);
  std::sort(permutation.begin(), permutation.end(),
            [&](int64_t x, int64_t y) { return order[static_cast<size_t>(x)] < order[static_cast<size_t>(y)]; });
  const mlir::Value sorted = builder.transpose(location, product, permutation);
  const mlir::Value result = builder.reshape(location, sorted, type.getShape());
  found.product = product.getDefiningOp();
  replace(found, sum->getResult(0), result);
  return found;
}

}  // namespace flashlift::stablehlo
