// Where the dimensions of queries, keys, values and outputs lie: following a tensor through transposes and reshapes to
// where it comes from or where it goes, and writing its layout in letters.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"
#include "stablehlo/algebra/affine.h"
#include "stablehlo/algebra/reason.h"
#include "stablehlo/algebra/roles.h"
#include "stablehlo/lift/lifted.h"

namespace flashlift::stablehlo {

// The one number of a value that is the same everywhere, also where it is computed: sqrt(64), 2 * ones.
std::optional<double> number_of(mlir::Value value);

// A tensor whose dimensions are atoms, or several atoms each (major to minor), or none (size 1).
struct PlacedTensor {
  mlir::Value value;
  std::vector<std::vector<int>> dims;
  float scale = 1.0f;  // the operand of the product is scale times this

  std::vector<int> order() const;  // all atoms, major to minor
};

// The places of a tensor with these indices, if each dimension runs through its atoms exactly once.
std::optional<PlacedTensor> place_tensor(mlir::Value value, const std::vector<Affine>& indices,
                                         const std::vector<int64_t>& sizes);

// The sources of an operand, nearest first: behind transposes, reshapes, broadcasts and multiplications by a constant,
// and behind float conversions that lose nothing if `through_conversions`. A reshape that runs across an atom asks for
// its split.
struct Sources {
  std::vector<PlacedTensor> tensors;
  SplitRequest split;
};
Sources follow_operand(mlir::Value operand, std::vector<Affine> indices, const std::vector<int64_t>& sizes,
                       bool through_conversions);

// The 16-bit type of all numbers that an operand of a product holds but for constant factors, whatever type it has
// itself. Nothing if there is none.
std::optional<DType> half_type_of(mlir::Value operand);

// Whether two operands of products are the same tensor read in the same way.
bool is_same_tensor(mlir::Value x, const std::vector<Affine>& x_indices, mlir::Value y,
                    const std::vector<Affine>& y_indices, const std::vector<int64_t>& sizes);

// x is this many times y, if both are the same tensor but for a constant factor and read in the same way.
std::optional<float> ratio_of_tensors(mlir::Value x, const std::vector<Affine>& x_indices, mlir::Value y,
                                      const std::vector<Affine>& y_indices, const std::vector<int64_t>& sizes);

// The tensor behind a multiplication or division by one number, if that alone reads it, maybe behind what
// follow_result() goes through; its `scale` is that number.
std::optional<PlacedTensor> follow_scaling(const PlacedTensor& tensor, const std::vector<int64_t>& sizes,
                                           std::optional<DType> half);

// One step from a value to its only user, if that is a transpose, a reshape or a float conversion whose result the
// atoms still describe. Nothing if not. A result of the call is rounded once, to its own type: an earlier rounding is
// left out if it is to `half`, the type of what the call reads, and stops the walk otherwise.
std::optional<PlacedTensor> follow_result(const PlacedTensor& tensor, const std::vector<int64_t>& sizes,
                                          std::optional<DType> half);

// The same through this user of the value, however many it has.
std::optional<PlacedTensor> follow_use(const PlacedTensor& tensor, mlir::Operation* user,
                                       const std::vector<int64_t>& sizes, std::optional<DType> half);

// The letters of a tensor, with the reshape and the transpose that they need.
Outcome<OperandView> operand_view(const PlacedTensor& tensor, const Roles& roles, const std::vector<int>& depth,
                                  const std::vector<int64_t>& sizes, bool is_key_or_value);
Outcome<ResultView> result_view(const PlacedTensor& tensor, const Roles& roles, const std::vector<int>& depth,
                                const std::vector<int64_t>& sizes);

}  // namespace flashlift::stablehlo
