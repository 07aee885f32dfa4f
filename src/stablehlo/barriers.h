// Removes optimization barriers from scores and probabilities. A checkpoint policy inserts these barriers to save the
// values.
#pragma once

#include <vector>

#include "llvm/ADT/DenseSet.h"
#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

// A barrier's result equals its operand. A barrier on scores or probabilities keeps them in memory until a gradient
// reads them. It also prevents the fusion of this gradient, after which nothing reads them.
class Barriers {
 public:
  // Removes values that look like scores, probabilities or row statistics from the barriers of a module.
  void open(Module& module);
  // Restores the barriers of values that are still used. `erased`: operations that no longer exist.
  void close(const llvm::DenseSet<mlir::Operation*>& erased);

 private:
  struct Use {
    mlir::Operation* user;  // null for another barrier that is also open
    unsigned operand;
    mlir::Value value;  // before the barrier
  };
  struct Opened {
    mlir::Operation* barrier;  // with the remaining operands
    std::vector<Use> uses;     // of the removed operands
  };
  std::vector<Opened> opened_;
};

}  // namespace flashlift::stablehlo
