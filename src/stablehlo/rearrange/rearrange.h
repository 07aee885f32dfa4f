// Rewrites an attention in equivalent forms, for products that cannot be fused in their original form.
#pragma once

#include <optional>
#include <vector>

#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"

namespace flashlift::stablehlo {

// The same results, apart from the order of sums, from another product of probabilities and values.
struct Rearrangement {
  struct Replaced {
    mlir::Value original;  // its uses were replaced by `result`
    mlir::Value result;
  };
  std::vector<Replaced> replaced;       // the output, followed by values from which its gradient is computed
  mlir::Operation* product = nullptr;   // the product to fuse
  std::vector<mlir::Operation*> added;  // each after its operands
};

// Replaces the sum of two products of the same softmax's probabilities, over two parts of the keys, by one product over
// all keys. It concatenates the keys and values of both parts.
std::optional<Rearrangement> join_parts_of_keys(mlir::Operation* product);
// Whether it would, but the scores of these parts are read elsewhere, too, and must be computed anyway.
bool has_parts_of_keys_read_elsewhere(mlir::Operation* product);
// Replaces products of the same probabilities with different values by one product with these values side by side, and
// so their gradients.
std::optional<Rearrangement> join_values(mlir::Operation* product);
// For probabilities times a number for each key, such as scales of 8-bit values: multiplies the values by it instead.
std::optional<Rearrangement> move_weights_to_values(mlir::Operation* product);
// For probabilities times a number for each row, or for some rows (such as those of padded queries, or of heads):
// multiplies the output by it instead, and the output's gradient in a backward pass. A gradient of these numbers that
// is a sum over keys becomes one over the depth of values.
std::optional<Rearrangement> move_weights_to_output(mlir::Operation* product);
// Adds the product of the probabilities with the values, which nothing reads, before a product that may be the gradient
// of queries or keys. The attention is proved with it, and its calls replace the gradient's products. The exponentials
// that are the probabilities, and the product of the output's gradient with the values, are guesses.
std::optional<Rearrangement> add_missing_output(mlir::Operation* product);
// Adds the division by the row sum, which nothing reads, to the product of the exponentials with the values, if only
// its gradient is computed from the product. The divisor is that of another tensor of the output's size: a guess, too.
std::optional<Rearrangement> add_missing_division(mlir::Operation* product);
// The matrix product for a multiplication and a sum in which an operand is broadcast. Nothing for other sums, and for
// row sums of exponentials that are masked by a multiplication.
std::optional<Rearrangement> multiplied_sum_as_product(mlir::Operation* sum);
// The multiplication for a product that sums nothing, one operand of which is broadcast to the other one's dimensions.
std::optional<Rearrangement> weight_product_as_multiplication(mlir::Operation* product);
// The multiplication and sum for a product in which no operand has a dimension of its own, as in the gradient of such
// weights.
std::optional<Rearrangement> product_as_multiplied_sum(mlir::Operation* product);
// The reduction for a reduce_window whose windows are whole rows, or for a reduction of windows that lie side by side.
std::optional<Rearrangement> windows_as_reduction(mlir::Operation* op);
// The reduction for a sum or maximum of reductions of slices that lie side by side and together are whole rows.
std::optional<Rearrangement> slices_as_reduction(mlir::Operation* op);
// For a sum with a logarithm of another base, such as m + log2(z): the sum with the natural logarithm, times a number.
std::optional<Rearrangement> log_sum_of_other_base(mlir::Operation* sum);
// For sums of added tensors, each of which may be a gradient of scores of several attentions (such as layers that share
// a bias): adds their sums instead, so that each attention has its own.
std::optional<Rearrangement> sum_gradients_apart(mlir::Operation* product);
// For a sum or difference of softmaxes that products read: the sum of the products with each of them instead. Reads
// negative products with the same values, which are the gradient of a subtracted softmax, as multiplied by -1.
std::optional<Rearrangement> split_sum_of_softmaxes(mlir::Operation* sum);
// Whether other operations than its own read a value that it added, apart from its results.
bool is_read_elsewhere(const Rearrangement& rearrangement);
// Restores the original.
void take_back(const Rearrangement& rearrangement);

}  // namespace flashlift::stablehlo
