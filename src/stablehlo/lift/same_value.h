// Determines whether two values of a module are computed in the same way.
#pragma once

#include "llvm/ADT/DenseMap.h"
#include "mlir/IR/Value.h"

namespace flashlift::stablehlo {

// A rematerialised backward pass recomputes values of the forward pass, from the same tensors after optimization
// barriers; in a loop, also from tensors that another loop computed before it. Values are the same if pure operations
// that differ at most in their locations compute them from the same values. False if the comparison takes too long.
class SameValues {
 public:
  enum class Barriers { kIgnored, kKept };
  explicit SameValues(Barriers barriers = Barriers::kIgnored) : barriers_(barriers) {}
  // Kept: values are only the same if they are computed from the same results of barriers.
  bool operator()(mlir::Value x, mlir::Value y);

 private:
  // A hash of the operations nearest to a value: equal for the same values, and for few others.
  size_t hash(mlir::Value value);
  bool compare(mlir::Value x, mlir::Value y, int depth);
  mlir::Value source(mlir::Value value) const;
  bool have_equal_regions(mlir::Operation* x, mlir::Operation* y, int depth);

  llvm::DenseMap<std::pair<mlir::Value, mlir::Value>, bool> known_;
  llvm::DenseMap<mlir::Value, size_t> hashes_;
  Barriers barriers_;
  int steps_ = 0;  // left
};

}  // namespace flashlift::stablehlo
