// Whether two values of a module are computed alike.
#pragma once

#include "llvm/ADT/DenseMap.h"
#include "mlir/IR/Value.h"

namespace flashlift::stablehlo {

// A rematerialised backward pass computes again what the forward pass has, from the same tensors behind barriers.
// Values are the same if pure operations that are equal but for their locations compute them from the same values.
// False where that takes too long to find out.
class SameValues {
 public:
  bool operator()(mlir::Value x, mlir::Value y);

 private:
  // Of the operations nearest to a value: equal for values that are the same, and for few others.
  size_t hash(mlir::Value value);
  bool compare(mlir::Value x, mlir::Value y, int depth);
  bool have_equal_regions(mlir::Operation* x, mlir::Operation* y, int depth);

  llvm::DenseMap<std::pair<mlir::Value, mlir::Value>, bool> known_;
  llvm::DenseMap<mlir::Value, size_t> hashes_;
  int steps_ = 0;  // left
};

}  // namespace flashlift::stablehlo
