// Numbers that probabilities are multiplied with behind the softmax.
#pragma once

#include <vector>

#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"

namespace flashlift::stablehlo {

// A value that is the same along all dimensions but these: what it is broadcast from, and which of its dimensions the
// source's dimensions are. Those of size 1 are none.
struct Broadcast {
  mlir::Value source;
  std::vector<int64_t> dims;  // -1 for size 1
};
Broadcast source_of(mlir::Value value);

// What makes an operand of a product, and what converts that to the other operand's type, if anything does.
struct Factor {
  mlir::Operation* op;
  mlir::Operation* rounds;
};
Factor factor_at(mlir::Operation* product, unsigned side);

// Numbers that may be weighted instead of probabilities: in f16 they may overflow where those do not.
bool may_be_weighted(mlir::Value value);

}  // namespace flashlift::stablehlo
