#include "stablehlo/lift/products.h"

#include <algorithm>
#include <cmath>

#include "stablehlo/lift/layout.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {

bool is_product(mlir::Operation* op) {
  return op != nullptr && (kind(op) == OpKind::kDotGeneral || kind(op) == OpKind::kDot) &&
         static_tensor(op->getResult(0)) && static_tensor(op->getOperand(0)) && static_tensor(op->getOperand(1));
}

bool is_exponential(mlir::Operation* op) {
  return kind(op) == OpKind::kExponential || (kind(op) == OpKind::kPower && splat(op->getOperand(0)));
}

std::optional<unsigned> side_summed_by_product(mlir::Operation* op) {
  for (unsigned side = 0; side < 2 && is_product(op); ++side) {
    const auto number = number_of(op->getOperand(1 - side));
    if (number && *number != 0 && std::isfinite(*number)) {
      return side;
    }
  }
  return std::nullopt;
}

OperandDims operand_dims(mlir::Operation* product, unsigned side) {
  const auto dims = *dot_dims(product);
  const auto& batch = side == 0 ? dims.lhs_batch : dims.rhs_batch;
  const auto& contract = side == 0 ? dims.lhs_contract : dims.rhs_contract;
  OperandDims own{{batch.begin(), batch.end()}, {contract.begin(), contract.end()}, {}};
  const auto rank = static_cast<int64_t>(shape(product->getOperand(side)).size());
  for (int64_t d = 0; d < rank; ++d) {
    if (!llvm::is_contained(own.batch, d) && !llvm::is_contained(own.contract, d)) {
      own.free.push_back(d);
    }
  }
  return own;
}

bool sum_alike(mlir::Operation* one, mlir::Operation* other, unsigned side) {
  if (!is_product(one) || !is_product(other) || one->getOperand(side) != other->getOperand(side)) {
    return false;
  }
  const auto are_equal = [](const OperandDims& x, const OperandDims& y) {
    return x.batch == y.batch && x.contract == y.contract && x.free == y.free;
  };
  const OperandDims added = operand_dims(one, 1 - side);
  if (!are_equal(operand_dims(one, side), operand_dims(other, side)) ||
      !are_equal(added, operand_dims(other, 1 - side)) || added.free.size() != 1) {
    return false;
  }
  const auto type = static_tensor(one->getOperand(1 - side));
  llvm::SmallVector<int64_t> sizes(type.getShape());
  const auto dim = static_cast<size_t>(added.free[0]);
  sizes[dim] = shape(other->getOperand(1 - side))[dim];
  return type.clone(sizes) == other->getOperand(1 - side).getType();
}

std::vector<Affine> operand_indices(const OperandDims& dims, const std::vector<Affine>& batch,
                                    const std::vector<Affine>& contract, const std::vector<Affine>& free) {
  std::vector<Affine> indices(dims.batch.size() + dims.contract.size() + dims.free.size());
  for (const auto& [which, given] :
       {std::pair(&dims.batch, &batch), std::pair(&dims.contract, &contract), std::pair(&dims.free, &free)}) {
    for (size_t i = 0; i < which->size(); ++i) {
      indices[static_cast<size_t>((*which)[i])] = (*given)[i];
    }
  }
  return indices;
}

std::optional<std::vector<Affine>> other_indices(mlir::Operation* product, unsigned side,
                                                 const std::vector<Affine>& indices, const std::vector<int>& depth,
                                                 const std::vector<int64_t>& sizes) {
  const OperandDims mine = operand_dims(product, side);
  const OperandDims other = operand_dims(product, 1 - side);
  const auto other_shape = shape(product->getOperand(1 - side));
  std::vector<Affine> result(other_shape.size());
  for (size_t i = 0; i < mine.batch.size(); ++i) {
    result[static_cast<size_t>(other.batch[i])] = indices[static_cast<size_t>(mine.batch[i])];
  }
  for (size_t i = 0; i < mine.contract.size(); ++i) {
    result[static_cast<size_t>(other.contract[i])] = indices[static_cast<size_t>(mine.contract[i])];
  }
  size_t next = 0;
  for (const int64_t d : other.free) {
    const int64_t size = other_shape[static_cast<size_t>(d)];
    if (size == 1) {
      continue;
    }
    if (next == depth.size() || sizes[static_cast<size_t>(depth[next])] != size) {
      return std::nullopt;
    }
    result[static_cast<size_t>(d)] = affine_atom(depth[next++]);
  }
  return next == depth.size() ? std::optional(result) : std::nullopt;
}

std::vector<Affine> result_indices(mlir::Operation* product, const std::vector<Affine>& lhs,
                                   const std::vector<Affine>& rhs) {
  const OperandDims left = operand_dims(product, 0);
  const OperandDims right = operand_dims(product, 1);
  std::vector<Affine> result;
  for (const int64_t d : left.batch) {
    result.push_back(lhs[static_cast<size_t>(d)]);
  }
  for (const int64_t d : left.free) {
    result.push_back(lhs[static_cast<size_t>(d)]);
  }
  for (const int64_t d : right.free) {
    result.push_back(rhs[static_cast<size_t>(d)]);
  }
  return result;
}

std::vector<Affine> affine_of(const std::vector<Index>& indices) {
  std::vector<Affine> affine;
  for (const Index& index : indices) {
    affine.push_back(index.affine);
  }
  return affine;
}

bool any_computed(const std::vector<Index>& indices) {
  return std::any_of(indices.begin(), indices.end(), [](const Index& index) { return index.general != kNoSym; });
}

}  // namespace flashlift::stablehlo
