// Optimization barriers around scores and probabilities, which a checkpoint policy puts there to save them.
#pragma once

#include <vector>

#include "llvm/ADT/DenseSet.h"
#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

// A barrier's result is its operand, number for number. One around scores or probabilities keeps them in memory until a
// gradient reads them, and is in the way of fusing the gradient, after which nobody reads them.
class Barriers {
 public:
  // Takes what looks like scores, probabilities or statistics of their rows out of the barriers of a module.
  void open(Module& module);
  // Puts back what is still read behind them. `erased`: operations that are gone.
  void close(const llvm::DenseSet<mlir::Operation*>& erased);

 private:
  struct Use {
    mlir::Operation* user;  // null: another barrier, which is open as well
    unsigned operand;
    mlir::Value value;  // before the barrier
  };
  struct Opened {
    mlir::Operation* barrier;  // with what is left
    std::vector<Use> uses;     // of what is not
  };
  std::vector<Opened> opened_;
};

}  // namespace flashlift::stablehlo
