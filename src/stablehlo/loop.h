// Loops (stablehlo.while) with a known number of iterations.
//
// What counts iterations is evaluated one iteration after another: the carried integers that start from constants and
// are computed from such integers alone. So a loop may count in any way: from any number, downwards, by any step, up to
// a bound that it carries.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "llvm/ADT/DenseMap.h"
#include "mlir/IR/Operation.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {

using Numbers = std::vector<int64_t>;  // one for each iteration

// Whether the condition and the body of a loop have the arguments and results that the loop's operands need.
bool is_regular(mlir::Operation* loop);

class Loop {
 public:
  // Nothing if this is no loop, or if the number of iterations is unknown or above a few thousand.
  static std::optional<Loop> read(mlir::Operation* op);

  mlir::Operation* op() const { return op_; }
  mlir::Block& body() const { return block(op_, 1); }
  // Number `carry` of the values that the loop carries: in the body, and as the body returns it.
  mlir::BlockArgument argument(unsigned carry) const { return body().getArgument(carry); }
  mlir::Value returned(unsigned carry) const { return body().back().getOperand(carry); }
  bool is_invariant(unsigned carry) const { return returned(carry) == argument(carry); }
  size_t iterations() const { return iterations_; }
  // What an integer of the body is in each iteration; nothing if it depends on more than what counts iterations.
  std::optional<Numbers> numbers(mlir::Value integer) const;

 private:
  explicit Loop(mlir::Operation* op) : op_(op) {}
  bool count();

  mlir::Operation* op_;
  size_t iterations_ = 0;
  llvm::DenseMap<unsigned, Numbers> counters_;  // the carried values that count iterations
};

}  // namespace flashlift::stablehlo
