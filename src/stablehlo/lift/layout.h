// The layout of queries, keys, values and outputs: follows a tensor through transposes and reshapes to its source or
// its use, and describes its dimensions by letters.
#pragma once

#include <optional>
#include <vector>

#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"
#include "stablehlo/algebra/affine.h"
#include "stablehlo/algebra/reason.h"
#include "stablehlo/algebra/roles.h"
#include "stablehlo/lift/lifted.h"

namespace flashlift::stablehlo {

// The number that all elements of a value have, also if it is computed: sqrt(64), 2 * ones.
std::optional<double> number_of(mlir::Value value);

// A tensor whose dimensions are atoms, or several atoms each (major to minor), or none (size 1).
struct PlacedTensor {
  mlir::Value value;
  std::vector<std::vector<int>> dims;
  float scale = 1.0f;  // the product's operand is scale times this tensor

  std::vector<int> order() const;  // all atoms, major to minor
};

// The tensor's dimensions as atoms, if these indices run through each dimension exactly once.
std::optional<PlacedTensor> place_tensor(mlir::Value value, const std::vector<Affine>& indices,
                                         const std::vector<int64_t>& sizes);

// The conversions behind which an operand is followed: none; those to f32 that lose nothing; or also those of numbers
// that were rounded from f32 to 16 bits before.
enum class Conversions { kNone, kExact, kOfRounded };

// The sources of an operand, nearest first: behind transposes, reshapes, broadcasts, multiplications by a constant, and
// conversions. A reshape that cuts an atom requests its split.
struct Sources {
  std::vector<PlacedTensor> tensors;
  SplitRequest split;
};
Sources follow_operand(mlir::Value operand, std::vector<Affine> indices, const std::vector<int64_t>& sizes,
                       Conversions passed);

// The 16-bit type that holds all numbers of a product's operand, apart from constant factors; the operand itself may
// have a wider type. Nothing if there is none.
std::optional<DType> half_type_of(mlir::Value operand, Conversions passed);

// Whether two operands of products are the same tensor read in the same way.
bool is_same_tensor(mlir::Value x, const std::vector<Affine>& x_indices, mlir::Value y,
                    const std::vector<Affine>& y_indices, const std::vector<int64_t>& sizes);

// The factor x / y, if both are the same tensor up to a constant factor, and are read in the same way.
std::optional<float> ratio_of_tensors(mlir::Value x, const std::vector<Affine>& x_indices, mlir::Value y,
                                      const std::vector<Affine>& y_indices, const std::vector<int64_t>& sizes);

// The result of a multiplication or division by one number, if this is the only user of the value (after the operations
// that follow_result() accepts); `scale` is that number.
std::optional<PlacedTensor> follow_scaling(const PlacedTensor& tensor, const std::vector<int64_t>& sizes,
                                           std::optional<DType> half);

// One step from a value to its only user, if this is a transpose, a reshape or a float conversion whose result the
// atoms still describe; otherwise nothing. A fused call rounds its result once, to the result's type. An earlier
// rounding to `half`, the type of the call's operands, is therefore left out; any other rounding stops the walk.
std::optional<PlacedTensor> follow_result(const PlacedTensor& tensor, const std::vector<int64_t>& sizes,
                                          std::optional<DType> half);

// The same through the given user of the value, which may have others.
std::optional<PlacedTensor> follow_use(const PlacedTensor& tensor, mlir::Operation* user,
                                       const std::vector<int64_t>& sizes, std::optional<DType> half);

// The letters of a tensor's dimensions, with the reshape and the transpose that they require. A tensor that lacks a
// letter shares it. A tensor with only some of a letter's atoms, as jax.vmap over some operands makes it, is repeated
// along the others, unless it would be larger than the scores: then XLA, which reads it once, may be faster.
Outcome<OperandView> operand_view(const PlacedTensor& tensor, const Roles& roles, const std::vector<int>& depth,
                                  const std::vector<int64_t>& sizes, bool is_key_or_value);
// The same for an operand that no batch, head, query or depth may share: the view repeats the tensor along the
// dimensions that it lacks. The output's gradient needs this, e.g. if each mapped call of jax.vmap sums its output.
Outcome<OperandView> whole_view(const PlacedTensor& tensor, const Roles& roles, const std::vector<int>& depth,
                                const std::vector<int64_t>& sizes);
Outcome<ResultView> result_view(const PlacedTensor& tensor, const Roles& roles, const std::vector<int>& depth,
                                const std::vector<int64_t>& sizes);

}  // namespace flashlift::stablehlo
