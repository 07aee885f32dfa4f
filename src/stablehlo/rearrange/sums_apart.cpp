// A sum over the score plane, of gradients that several attentions add first: layers that share a bias.

#include "stablehlo/lift/products.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"
#include "stablehlo/rearrange/rearrange.h"

namespace flashlift::stablehlo {
namespace {

bool is_addition_used_once(mlir::Value value) { return defining(value, OpKind::kAdd) != nullptr && value.hasOneUse(); }

// Adds the sums of both operands of an addition, and of the additions that these are.
mlir::Value summed_apart(Builder& builder, mlir::Operation* sum, mlir::Value value) {
  if (!is_addition_used_once(value)) {
    return builder.copy(sum, {value, sum->getOperand(1)});
  }
  mlir::Operation* const addition = value.getDefiningOp();
  const mlir::Value x = summed_apart(builder, sum, addition->getOperand(0));
  const mlir::Value y = summed_apart(builder, sum, addition->getOperand(1));
  return builder.like(addition, {x, y}, sum->getResult(0).getType());
}

}  // namespace

std::optional<Rearrangement> sum_gradients_apart(mlir::Operation* product) {
  if (!is_product(product)) {
    return std::nullopt;
  }
  const auto sizes_of = [&](unsigned side) { return static_tensor(product->getOperand(side)).getNumElements(); };
  std::vector<mlir::Operation*> sums;
  for (mlir::Operation* op = product; op != nullptr; op = op->getNextNode()) {
    const auto how = kind(op) == OpKind::kReduce ? reduction(op) : std::nullopt;
    if (how && how->reducer == Reducer::kAdd && how->inputs.size() == 1 && splat(how->inits[0]) == 0.0 &&
        static_tensor(how->inputs[0]) && is_addition_used_once(how->inputs[0])) {
      const int64_t count = static_tensor(how->inputs[0]).getNumElements();
      if (count == sizes_of(0) || count == sizes_of(1)) {
        sums.push_back(op);
      }
    }
  }
  if (sums.empty()) {
    return std::nullopt;
  }
  Rearrangement found{.replaced = {}, .product = product, .added = {}};
  for (mlir::Operation* sum : sums) {
    Builder builder(sum, found.added);
    replace(found, sum->getResult(0), summed_apart(builder, sum, sum->getOperand(0)));
  }
  return found;
}

}  // namespace flashlift::stablehlo
