#include "stablehlo/parts.h"

#include <algorithm>
#include <vector>

#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"

namespace flashlift::stablehlo {
namespace {

bool is_empty(mlir::Value value) { return static_tensor(value) && static_tensor(value).getNumElements() == 0; }

// The only operand of a concatenation that holds elements.
mlir::Value only_operand(mlir::Operation* concatenation) {
  mlir::Value only;
  for (const mlir::Value operand : concatenation->getOperands()) {
    if (!is_empty(operand)) {
      if (only || operand.getType() != concatenation->getResult(0).getType()) {
        return {};
      }
      only = operand;
    }
  }
  return only;
}

// The same elements as a slice of one operand of the concatenation that it slices.
mlir::Value slice_of_operand(mlir::OpBuilder& builder, mlir::Operation* slice) {
  mlir::Operation* const whole = defining(slice->getOperand(0), OpKind::kConcatenate);
  const auto bounds = slice_bounds(slice);
  if (whole == nullptr || !bounds || !static_tensor(whole->getResult(0)) || !static_tensor(slice->getResult(0)) ||
      is_empty(slice->getResult(0))) {
    return {};
  }
  const auto along = static_cast<size_t>(*concat_dim(whole));
  llvm::SmallVector<int64_t> start(bounds->start);
  llvm::SmallVector<int64_t> limit(bounds->limit);
  for (const mlir::Value operand : whole->getOperands()) {
    if (!static_tensor(operand)) {
      return {};
    }
    const int64_t size = shape(operand)[along];
    if (start[along] < size) {
      if (limit[along] > size) {
        return {};
      }
      const auto named = [&](llvm::StringRef name, llvm::ArrayRef<int64_t> numbers) {
        return mlir::NamedAttribute(builder.getStringAttr(name), builder.getDenseI64ArrayAttr(numbers));
      };
      return build(builder, slice->getLoc(), "stablehlo.slice", operand, slice->getResult(0).getType(),
                   {named("start_indices", start), named("limit_indices", limit), named("strides", bounds->stride)})
          ->getResult(0);
    }
    start[along] -= size;
    limit[along] -= size;
  }
  return {};
}

// A value that the operation's result equals; null if there is none.
mlir::Value existing(mlir::OpBuilder& builder, mlir::Operation* op) {
  switch (kind(op)) {
    case OpKind::kConcatenate:
      return only_operand(op);
    case OpKind::kSlice:
      if (op->getOperand(0).getType() == op->getResult(0).getType() && static_tensor(op->getResult(0))) {
        return op->getOperand(0);
      }
      return slice_of_operand(builder, op);
    case OpKind::kReshape: {
      mlir::Value source = op->getOperand(0);
      while (const mlir::Value other = reshaped(source)) {
        source = other;
      }
      return source.getType() == op->getResult(0).getType() ? source : mlir::Value();
    }
    default:
      return {};
  }
}

}  // namespace

void read_parts_from_operands(Module& module) {
  mlir::OpBuilder builder(module.op()->getContext());
  std::vector<mlir::Operation*> pending;
  module.op()->walk([&](mlir::Operation* op) { pending.push_back(op); });
  std::reverse(pending.begin(), pending.end());  // the first one first
  while (!pending.empty()) {
    mlir::Operation* const op = pending.back();
    pending.pop_back();
    builder.setInsertionPoint(op);
    if (const mlir::Value value = existing(builder, op)) {
      op->getResult(0).replaceAllUsesWith(value);
      op->erase();
      if (mlir::Operation* const next = value.getDefiningOp(); next != nullptr && kind(next) == OpKind::kSlice) {
        pending.push_back(next);  // perhaps of another concatenation
      }
    }
  }
}

}  // namespace flashlift::stablehlo
