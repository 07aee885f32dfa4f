// Weights: numbers by which probabilities are multiplied after the softmax.
#pragma once

#include <vector>

#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"

namespace flashlift::stablehlo {

// A value that is constant along all dimensions except these: the source of the broadcast, and the dimensions that the
// source's dimensions become, not counting those of size 1.
struct Broadcast {
  mlir::Value source;
  std::vector<int64_t> dims;  // -1 for size 1
};
Broadcast source_of(mlir::Value value);

// The operation that creates an operand of a product, and the conversion to the other operand's type, if there is one.
struct Factor {
  mlir::Operation* op;
  mlir::Operation* rounds;
};
Factor factor_at(mlir::Operation* product, unsigned side);

// Whether these numbers may be weighted instead of probabilities: in f16 they might overflow, unlike probabilities.
bool may_be_weighted(mlir::Value value);

}  // namespace flashlift::stablehlo
