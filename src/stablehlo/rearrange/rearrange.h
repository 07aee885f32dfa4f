// Other ways to write what an attention computes, for products that are not fused as they stand.
#pragma once

#include <optional>
#include <vector>

#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"

namespace flashlift::stablehlo {

// The same numbers, but for the order of sums, from another product of probabilities and values.
struct Rearrangement {
  struct Replaced {
    mlir::Value original;  // whose uses `result` has taken over
    mlir::Value result;
  };
  std::vector<Replaced> replaced;       // the output, and then what its gradient is computed from
  mlir::Operation* product = nullptr;   // to be fused
  std::vector<mlir::Operation*> added;  // each behind what it reads
};

// Two products of the same softmax's probabilities, over two parts of the keys, whose results are added: one product
// over all keys. Keys and values of both parts are copied behind each other for it.
std::optional<Rearrangement> join_parts_of_keys(mlir::Operation* product);
// Probabilities times a number for each key, as scales of 8-bit values are applied: the values are multiplied with it.
std::optional<Rearrangement> move_weights_to_values(mlir::Operation* product);
// Probabilities times a number for each row, or only of some rows, as of padded queries or of heads: the output is
// multiplied with it, and in a backward pass the output's gradient. Not the gradient by these numbers.
std::optional<Rearrangement> move_weights_to_output(mlir::Operation* product);
// In front of a product that may be the gradient by queries or keys: the product of the probabilities with the values,
// which nothing reads. The attention is proved with it, and its calls take the place of the gradient's products. It is
// a guess which exponentials are the probabilities' and which product is that of the output's gradient and the values.
std::optional<Rearrangement> add_missing_output(mlir::Operation* product);
// The matrix product that a multiplication and a sum are, where an operand is broadcast. Nothing for other sums, and
// for row sums of exponentials that are masked by a multiplication.
std::optional<Rearrangement> multiplied_sum_as_product(mlir::Operation* sum);
// Puts the original back.
void take_back(const Rearrangement& rearrangement);

}  // namespace flashlift::stablehlo
