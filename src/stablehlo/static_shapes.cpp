#include "stablehlo/static_shapes.h"

#include <numeric>
#include <vector>

#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"

namespace flashlift::stablehlo {
namespace {

mlir::NamedAttribute named(mlir::OpBuilder& builder, llvm::StringRef name, mlir::Attribute value) {
  return {builder.getStringAttr(name), value};
}

llvm::ArrayRef<int64_t> numbers(mlir::Operation* op, llvm::StringRef name) {
  const auto array = op->getAttrOfType<mlir::DenseI64ArrayAttr>(name);
  return array ? array.asArrayRef() : llvm::ArrayRef<int64_t>();
}

// Whether each dimension of the operand is 1, or that of the result which `dims` names. The reader has not checked it.
bool fits(mlir::Operation* op, llvm::ArrayRef<int64_t> dims) {
  const llvm::ArrayRef<int64_t> from = shape(op->getOperand(0));
  const llvm::ArrayRef<int64_t> to = shape(op->getResult(0));
  std::vector<bool> used(to.size());
  bool fits = from.size() == dims.size();
  for (size_t i = 0; fits && i < dims.size(); ++i) {
    const auto dim = static_cast<size_t>(dims[i]);
    fits = dim < to.size() && !used[dim] && (from[i] == 1 || from[i] == to[dim]);
    if (fits) {
      used[dim] = true;
    }
  }
  return fits;
}

// The dimensions that those of the operand of a dynamic_broadcast_in_dim or broadcast become.
std::vector<int64_t> broadcast_to(mlir::Operation* op) {
  if (kind(op) == OpKind::kDynamicBroadcastInDim) {
    return numbers(op, "broadcast_dimensions").vec();
  }
  std::vector<int64_t> dims(shape(op->getOperand(0)).size());  // the sizes are of new first dimensions
  std::iota(dims.begin(), dims.end(), static_cast<int64_t>(numbers(op, "broadcast_sizes").size()));
  return dims;
}

// The operation without sizes as operands; null if it stays.
mlir::Operation* with_static_shape(mlir::OpBuilder& builder, mlir::Operation* op) {
  const auto is_static = [](mlir::Value value) { return static_cast<bool>(static_tensor(value)); };
  if (op->getNumResults() != 1 || op->getNumOperands() == 0 || !is_static(op->getResult(0)) ||
      !is_static(op->getOperand(0))) {
    return nullptr;
  }
  builder.setInsertionPoint(op);
  const mlir::Value operand = op->getOperand(0);
  const mlir::Value result = op->getResult(0);
  switch (kind(op)) {
    case OpKind::kBroadcast:
    case OpKind::kDynamicBroadcastInDim: {
      const std::vector<int64_t> dims = broadcast_to(op);
      return fits(op, dims) ? build(builder, op->getLoc(), "stablehlo.broadcast_in_dim", operand, result.getType(),
                                    {named(builder, "broadcast_dimensions", builder.getDenseI64ArrayAttr(dims))})
                            : nullptr;
    }
    case OpKind::kDynamicReshape:
      return static_tensor(operand).getNumElements() == static_tensor(result).getNumElements()
                 ? build(builder, op->getLoc(), "stablehlo.reshape", operand, result.getType())
                 : nullptr;
    case OpKind::kDynamicIota: {
      const auto dim = op->getAttrOfType<mlir::IntegerAttr>("iota_dimension");
      return dim && dim.getInt() >= 0 && dim.getInt() < static_tensor(result).getRank()
                 ? build(builder, op->getLoc(), "stablehlo.iota", {}, result.getType(),
                         {named(builder, "iota_dimension", dim)})
                 : nullptr;
    }
    default:
      return nullptr;
  }
}

}  // namespace

void use_static_shapes(Module& module) {
  mlir::OpBuilder builder(module.op()->getContext());
  module.op()->walk([&](mlir::Operation* op) {
    if (mlir::Operation* const replacement = with_static_shape(builder, op)) {
      replacement->setDiscardableAttrs(op->getDiscardableAttrDictionary());
      op->replaceAllUsesWith(replacement);
      op->erase();
    }
  });
}

std::optional<mlir::Location> find_size_at_run_time(Module& module) {
  std::optional<mlir::Location> found;
  module.op()->walk([&](mlir::Operation* op) {
    if (kind(op) != OpKind::kSetDimensionSize || !static_tensor(op->getResult(0))) {
      return mlir::WalkResult::advance();
    }
    const auto dim = op->getAttrOfType<mlir::IntegerAttr>("dimension");
    const llvm::ArrayRef<int64_t> sizes = shape(op->getResult(0));
    const bool exists = dim && dim.getInt() >= 0 && dim.getInt() < static_cast<int64_t>(sizes.size());
    if (exists && splat(op->getOperand(1)) == static_cast<double>(sizes[static_cast<size_t>(dim.getInt())])) {
      return mlir::WalkResult::advance();
    }
    found = op->getLoc();
    return mlir::WalkResult::interrupt();
  });
  return found;
}

}  // namespace flashlift::stablehlo
