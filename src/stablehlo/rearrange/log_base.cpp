// A log-sum-exp of another base, m + log2(z), which is one of base e times a number.

#include <cmath>

#include "stablehlo/lift/candidates.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"
#include "stablehlo/rearrange/rearrange.h"

namespace flashlift::stablehlo {
namespace {

// A number that all elements have, or whose logarithm they all have.
std::optional<double> number_of(mlir::Value value) {
  if (mlir::Operation* const broadcast = defining(value, OpKind::kBroadcastInDim)) {
    return number_of(broadcast->getOperand(0));
  }
  mlir::Operation* const log = defining(value, OpKind::kLog);
  const auto number = splat(log != nullptr ? log->getOperand(0) : value);
  return number && log != nullptr ? std::log(*number) : number;
}

// A natural logarithm, and the logarithm of a base by which it is divided.
struct OtherLogarithm {
  mlir::Operation* op = nullptr;  // the division, or a multiplication
  unsigned of = 0;                // the operand of `op` that is the natural logarithm
  double of_base = 0;

  mlir::Value natural() const { return op->getOperand(of); }
};

std::optional<OtherLogarithm> other_logarithm(mlir::Value value) {
  mlir::Operation* const op = value.getDefiningOp();
  const bool divides = op != nullptr && kind(op) == OpKind::kDivide;
  if (!divides && (op == nullptr || kind(op) != OpKind::kMultiply)) {
    return std::nullopt;
  }
  for (const unsigned of : {0U, 1U}) {
    const auto number = number_of(op->getOperand(1 - of));
    const double of_base = !number ? 0 : divides ? *number : 1 / *number;
    if (defining(op->getOperand(of), OpKind::kLog) != nullptr && of_base > 0 && std::isfinite(of_base)) {
      return OtherLogarithm{.op = op, .of = of, .of_base = of_base};
    }
    if (divides) {
      break;
    }
  }
  return std::nullopt;
}

// Writes the logarithm's derivative, gradient / (z * number), as gradient / number / z: its gradient is then a value.
void divide_gradients_by_number(mlir::Value natural, Rearrangement& found) {
  const mlir::Value z = natural.getDefiningOp()->getOperand(0);
  const auto uses = llvm::to_vector(z.getUsers());
  for (mlir::Operation* multiple : uses) {
    if (kind(multiple) != OpKind::kMultiply) {
      continue;
    }
    const mlir::Value number = multiple->getOperand(multiple->getOperand(0) == z ? 1 : 0);
    if (!number_of(number)) {
      continue;
    }
    for (mlir::Operation* quotient : llvm::to_vector(multiple->getUsers())) {
      if (kind(quotient) != OpKind::kDivide || quotient->getOperand(1) != multiple->getResult(0)) {
        continue;
      }
      Builder builder(quotient, found.added);
      const mlir::Type type = quotient->getResult(0).getType();
      const mlir::Value gradient = builder.like(quotient, {quotient->getOperand(0), number}, type);
      replace(found, quotient->getResult(0), builder.like(quotient, {gradient, z}, type));
    }
  }
}

}  // namespace

std::optional<Rearrangement> log_sum_of_other_base(mlir::Operation* sum) {
  if (kind(sum) != OpKind::kAdd || !static_tensor(sum->getResult(0)) ||
      dtype(sum->getResult(0).getType()) != DType::kF32) {
    return std::nullopt;
  }
  for (const unsigned of : {0U, 1U}) {
    const auto logarithm = other_logarithm(sum->getOperand(of));
    if (!logarithm || !is_near_softmax(logarithm->natural())) {
      continue;
    }
    Rearrangement found;
    Builder builder(sum, found.added);
    const mlir::Location location = sum->getLoc();
    const auto numbers = [&](double number) {
      return builder.constant(
          location, mlir::DenseElementsAttr::get(static_tensor(sum->getResult(0)), static_cast<float>(number)));
    };
    const mlir::Value rest = builder.multiply(location, sum->getOperand(1 - of), numbers(logarithm->of_base));
    const mlir::Value natural = builder.like(sum, {rest, logarithm->natural()}, sum->getResult(0).getType());
    found.product = natural.getDefiningOp();
    // Not a multiplication by 1 / of_base, whose rounding would count if a gradient multiplies a large m by of_base.
    llvm::SmallVector<mlir::Value> operands(logarithm->op->getOperands());
    operands[logarithm->of] = natural;
    replace(found, sum->getResult(0), builder.like(logarithm->op, operands, natural.getType()));
    divide_gradients_by_number(logarithm->natural(), found);
    return found;
  }
  return std::nullopt;
}

}  // namespace flashlift::stablehlo
