// Which products may be those of an attention: what a value is computed from, and which exponentials may be a
// softmax's. This only decides what is tried; the attempts prove it.
#pragma once

#include <cstddef>
#include <vector>

#include "llvm/ADT/STLFunctionalExtras.h"
#include "mlir/IR/Operation.h"
#include "stablehlo/lift/work.h"

namespace flashlift::stablehlo {

// The operations between one product and those it depends on, at most.
inline constexpr size_t kLongestChain = 20000;
// The first products that are tried for one second product. Scores of an attention never have more. A model's residual
// stream has, and so has its gradient, whose loss also sums exponentials.
inline constexpr size_t kMostFirstProducts = 16;

// Whether an operation is a matrix product, of any shapes, and not merely the sum of one operand.
bool is_dot(mlir::Operation* op);

// Whether a value may be computed from a softmax without a product in between. The first call looks at the whole
// module.
bool may_follow_softmax(mlir::Value value, Work& work);

// Whether the value is the gradient of a cross-entropy loss, probabilities minus targets. Its softmax is the model's
// output, as over a vocabulary, and no attention, although products with embeddings stand before and behind it.
bool is_gradient_of_loss(mlir::Value value);

// The operations that a value is computed from, up to the products before it.
struct Chain {
  std::vector<mlir::Operation*> products;
  std::vector<mlir::Operation*> exponentials;  // and powers, whose base may be a number
  bool is_cut = false;                         // longer than what is looked at
  mlir::Operation* differences = nullptr;      // a sum of them, as a distance of queries and keys is
  bool has_softmax = false;  // or what may be one: an exponential that is summed or less a number of its row
};

// Follows the results of regions, so that products in branches and loops are found. No formula reads a region: such a
// chain only serves to find the reason for the report. Stops after too many products: the chain of a deep model's
// residual stream would be as long as the module, for each of its products.
Chain chain_behind(mlir::Value value, Work& work);

// Whether a product is used by an exponential that subtracts one number per row and has no row sum. Such scores are
// normalised by a log-sum-exp, or by a maximum and a sum, that were computed before.
bool is_normalised_by_row(mlir::Operation* product);

// Whether a value is used by a summed exponential, or computed from one, without a product in between. Such values are
// scores, probabilities and row statistics.
bool is_near_softmax(mlir::Value value);

// Whether a value is near a softmax, or computed from a product that is_wanted() without another product in between.
bool is_near_softmax_or_behind(mlir::Value value, llvm::function_ref<bool(mlir::Operation*)> is_wanted);

}  // namespace flashlift::stablehlo
