#include "stablehlo/lift/same_value.h"

#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/SmallVector.h"
#include "mlir/IR/OperationSupport.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

constexpr int kMostSteps = 2000;
constexpr int kMostDepth = 400;

// What a loop carries unchanged is in each iteration what it was before the loop.
mlir::Value before_loop(mlir::Value value) {
  const auto argument = mlir::dyn_cast<mlir::BlockArgument>(value);
  mlir::Operation* const loop = argument ? argument.getOwner()->getParentOp() : nullptr;
  if (loop == nullptr || kind(loop) != OpKind::kWhile || argument.getOwner() != &block(loop, 1)) {
    return nullptr;
  }
  const mlir::ValueRange returned = argument.getOwner()->back().getOperands();
  const unsigned number = argument.getArgNumber();
  const bool is_carried = number < returned.size() && number < loop->getNumOperands();
  return is_carried && returned[number] == argument ? loop->getOperand(number) : nullptr;
}

// Compares the properties, which hold an operation's own attributes: getAttrDictionary() leaves these out if it does
// not know the operation.
bool have_equal_attributes(mlir::Operation* x, mlir::Operation* y) {
  return x->getPropertiesAsAttribute() == y->getPropertiesAsAttribute() &&
         x->getDiscardableAttrDictionary() == y->getDiscardableAttrDictionary();
}

bool are_equal_but_for_operands(mlir::Operation* x, mlir::Operation* y) {
  return mlir::OperationEquivalence::isEquivalentTo(x, y, mlir::OperationEquivalence::ignoreValueEquivalence, nullptr,
                                                    mlir::OperationEquivalence::Flags::IgnoreLocations);
}

}  // namespace

// The value that comes into loops, or through barriers unless they are kept, as this one.
mlir::Value SameValues::source(mlir::Value value) const {
  for (;;) {
    mlir::Value same = barriers_ == Barriers::kIgnored ? same_number(value) : nullptr;
    same = same ? same : before_loop(value);
    if (!same) {
      return value;
    }
    value = same;
  }
}

bool SameValues::operator()(mlir::Value x, mlir::Value y) {
  steps_ = kMostSteps;
  return hash(x) == hash(y) && compare(x, y, 0);
}

size_t SameValues::hash(mlir::Value value) {
  constexpr size_t kMostOperations = 64;  // the nearest ones first: layers of a model differ by their own weights
  size_t& hash = hashes_[value];
  if (hash != 0) {
    return hash;
  }
  llvm::SmallVector<mlir::Value, kMostOperations> values = {source(value)};
  for (size_t i = 0; i < values.size() && i < kMostOperations; ++i) {
    const auto result = llvm::dyn_cast<mlir::OpResult>(values[i]);
    if (!result) {
      hash = llvm::hash_combine(hash, values[i].getAsOpaquePointer());
      continue;
    }
    mlir::Operation* const op = result.getOwner();
    hash = llvm::hash_combine(hash, op->getName(), result.getResultNumber(), values[i].getType());
    for (const mlir::Value operand : op->getOperands()) {
      values.push_back(source(operand));
    }
  }
  return hash;
}

bool SameValues::compare(mlir::Value x, mlir::Value y, int depth) {
  x = source(x);
  y = source(y);
  if (x == y) {
    return true;
  }
  const auto result_x = llvm::dyn_cast<mlir::OpResult>(x);
  const auto result_y = llvm::dyn_cast<mlir::OpResult>(y);
  if (!result_x || !result_y || x.getType() != y.getType() ||
      result_x.getResultNumber() != result_y.getResultNumber() || depth > kMostDepth || --steps_ < 0) {
    return false;
  }
  const auto pair = std::pair(x, y);
  if (const auto found = known_.find(pair); found != known_.end()) {
    return found->second;
  }
  mlir::Operation* const op_x = result_x.getOwner();
  mlir::Operation* const op_y = result_y.getOwner();
  bool same =
      op_x->getName() == op_y->getName() && op_x->getNumOperands() == op_y->getNumOperands() &&
      op_x->getNumRegions() == op_y->getNumRegions() && is_removable(op_x) && have_equal_attributes(op_x, op_y) &&
      (op_x->getNumRegions() == 0 ? are_equal_but_for_operands(op_x, op_y) : have_equal_regions(op_x, op_y, depth));
  for (unsigned i = 0; same && i < op_x->getNumOperands(); ++i) {
    same = compare(op_x->getOperand(i), op_y->getOperand(i), depth + 1);
  }
  if (same || steps_ >= 0) {
    known_[pair] = same;
  }
  return same;
}

// Regions may read values from outside.
bool SameValues::have_equal_regions(mlir::Operation* x, mlir::Operation* y, int depth) {
  llvm::DenseMap<mlir::Value, mlir::Value> inside;
  for (unsigned i = 0; i < x->getNumRegions(); ++i) {
    const bool equal = mlir::OperationEquivalence::isRegionEquivalentTo(
        &x->getRegion(i), &y->getRegion(i),
        [&](mlir::Value of_x, mlir::Value of_y) {
          const auto found = inside.find(of_x);
          const bool same = found != inside.end() ? found->second == of_y : compare(of_x, of_y, depth + 1);
          return mlir::success(same);
        },
        [&](mlir::Value of_x, mlir::Value of_y) { inside[of_x] = of_y; },
        mlir::OperationEquivalence::Flags::IgnoreLocations);
    if (!equal) {
      return false;
    }
  }
  return true;
}

}  // namespace flashlift::stablehlo
