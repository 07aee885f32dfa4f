// Matrix products and exponentials, and the indices at which their operands and results are read.
#pragma once

#include <optional>
#include <vector>

#include "mlir/IR/Operation.h"
#include "stablehlo/algebra/affine.h"
#include "stablehlo/lift/evaluate.h"

namespace flashlift::stablehlo {

// A matrix product of static shapes.
bool is_product(mlir::Operation* op);

// e^x, or a power of a number.
bool is_exponential(mlir::Operation* op);

// The operand that a product merely sums, if the other one is a constant of equal elements (other than 0). Such a
// product counts as a sum.
std::optional<unsigned> side_summed_by_product(mlir::Operation* op);

// The dimensions of a product's operand.
struct OperandDims {
  std::vector<int64_t> batch, contract, free;
};
OperandDims operand_dims(mlir::Operation* product, unsigned side);

// Whether two products sum the same operand over the same dimensions, so that one product with their other operands
// concatenated gives both results.
bool sum_alike(mlir::Operation* one, mlir::Operation* other, unsigned side);

// The indices of one operand, from those of the dimensions of each kind.
std::vector<Affine> operand_indices(const OperandDims& dims, const std::vector<Affine>& batch,
                                    const std::vector<Affine>& contract, const std::vector<Affine>& free);

// The indices of the other operand of a product, whose free dimensions run through `depth`. Nothing if they do not.
std::optional<std::vector<Affine>> other_indices(mlir::Operation* product, unsigned side,
                                                 const std::vector<Affine>& indices, const std::vector<int>& depth,
                                                 const std::vector<int64_t>& sizes);

// Batch dimensions, then the free ones of the left operand, then those of the right one.
std::vector<Affine> result_indices(mlir::Operation* product, const std::vector<Affine>& lhs,
                                   const std::vector<Affine>& rhs);

std::vector<Affine> affine_of(const std::vector<Index>& indices);
// Whether some index is not an affine function of the index variables.
bool any_computed(const std::vector<Index>& indices);

}  // namespace flashlift::stablehlo
