// Determines which operations depend on an operation's result.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "llvm/ADT/DenseMap.h"
#include "mlir/IR/Operation.h"

namespace flashlift::stablehlo {

// Caches its answers. `barriers` count as operations that do not depend on the result.
class DependsOn {
 public:
  DependsOn(mlir::Operation* product, std::vector<mlir::Operation*> barriers)
      : product_(product), barriers_(std::move(barriers)) {}
  bool operator()(mlir::Operation* op);

 private:
  // The answer if it does not require the operands.
  std::optional<bool> known(mlir::Operation* op) const;

  mlir::Operation* product_;
  std::vector<mlir::Operation*> barriers_;
  llvm::DenseMap<mlir::Operation*, bool> known_;
};

}  // namespace flashlift::stablehlo
