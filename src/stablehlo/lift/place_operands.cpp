// Stage 2: the indices at which the products read queries, keys and values, and write the output.
#include <algorithm>

#include "stablehlo/lift/products.h"
#include "stablehlo/lift/stages.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// Creates an atom for each of these dimensions that has more than one element.
std::vector<Affine> new_indices(Plane& plane, mlir::Value tensor, const std::vector<int64_t>& dims,
                                std::vector<int>& atoms) {
  std::vector<Affine> indices;
  for (const int64_t d : dims) {
    const int64_t size = shape(tensor)[static_cast<size_t>(d)];
    if (size == 1) {
      indices.emplace_back();
    } else {
      atoms.push_back(plane.new_atom(size));
      indices.push_back(affine_atom(atoms.back()));
    }
  }
  return indices;
}

Proof place_queries_and_keys(Plane& plane, Operands& operands) {
  const OperandDims lhs_dims = operand_dims(plane.pair.first, 0);
  const OperandDims rhs_dims = operand_dims(plane.pair.first, 1);
  const std::vector<Affine> score = affine_of(plane.evaluator->score_indices());
  FLASHLIFT_RETURN_IF_ERROR(plane.check_atoms_left(lhs_dims.contract.size()));
  const std::vector<Affine> contract =
      new_indices(plane, plane.pair.first->getOperand(0), lhs_dims.contract, operands.depth);
  const auto lhs_begin = score.begin() + static_cast<std::ptrdiff_t>(lhs_dims.batch.size());
  const auto rhs_begin = lhs_begin + static_cast<std::ptrdiff_t>(lhs_dims.free.size());
  const std::vector<Affine> batch(score.begin(), lhs_begin);
  const ReadTensor lhs{plane.pair.first->getOperand(0),
                       operand_indices(lhs_dims, batch, contract, {lhs_begin, rhs_begin})};
  const ReadTensor rhs{plane.pair.first->getOperand(1),
                       operand_indices(rhs_dims, batch, contract, {rhs_begin, score.end()})};
  const auto mentions_key = [&](const ReadTensor& tensor) {
    return std::any_of(tensor.indices.begin(), tensor.indices.end(),
                       [&](const Affine& i) { return plane.evaluator->runs_over_keys(i); });
  };
  const bool lhs_is_key = mentions_key(lhs);
  if (lhs_is_key == mentions_key(rhs)) {
    return refuse<Reason::kNoKeys>();
  }
  operands.q = lhs_is_key ? rhs : lhs;
  operands.k = lhs_is_key ? lhs : rhs;
  return {};
}

Proof place_values_and_output(Plane& plane, const Probabilities& probabilities, Operands& operands) {
  const unsigned other = 1 - plane.pair.side;
  const OperandDims p_dims = operand_dims(plane.pair.second, plane.pair.side);
  const OperandDims v_dims = operand_dims(plane.pair.second, other);
  operands.v.value = plane.pair.second->getOperand(other);
  FLASHLIFT_RETURN_IF_ERROR(plane.check_atoms_left(shape(operands.v.value).size()));
  const std::vector<Affine> p = affine_of(probabilities.indices);
  const auto of_probabilities = [&](const std::vector<int64_t>& dims) {
    std::vector<Affine> indices;
    for (const int64_t d : dims) {
      indices.push_back(p[static_cast<size_t>(d)]);
    }
    return indices;
  };
  const std::vector<Affine> free = new_indices(plane, operands.v.value, v_dims.free, operands.value_depth);
  operands.v.indices = operand_indices(v_dims, of_probabilities(p_dims.batch), of_probabilities(p_dims.contract), free);
  operands.out = place_tensor(plane.pair.second->getResult(0),
                              plane.pair.side == 0 ? result_indices(plane.pair.second, p, operands.v.indices)
                                                   : result_indices(plane.pair.second, operands.v.indices, p),
                              plane.sizes);
  return operands.out ? Proof() : refuse<Reason::kOutputDimensions>();
}

// If the output is not computed here, the values are the tensor that is multiplied with the output's gradient.
Proof place_values_of_gradient(Plane& plane, const Probabilities& probabilities, Operands& operands) {
  const unsigned other = 1 - plane.pair.side;
  operands.d_out.value = plane.pair.second->getOperand(other);
  FLASHLIFT_RETURN_IF_ERROR(plane.check_atoms_left(shape(operands.d_out.value).size()));
  new_indices(plane, operands.d_out.value, operand_dims(plane.pair.second, other).free, operands.value_depth);
  operands.d_out.indices = *other_indices(plane.pair.second, plane.pair.side, affine_of(probabilities.indices),
                                          operands.value_depth, plane.sizes);
  operands.uses = read_score_uses(plane, probabilities, nullptr);
  for (const GradientProduct& candidate : gradient_products(plane, operands.value_depth)) {
    for (unsigned side = 0; side < 2; ++side) {
      if (is_same_tensor(candidate.product->getOperand(side), candidate.indices[side], operands.d_out.value,
                         operands.d_out.indices, plane.sizes)) {
        operands.v = {candidate.product->getOperand(1 - side), candidate.indices[1 - side]};
        return {};
      }
    }
  }
  return refuse<Reason::kNoOutputGradient>();
}

}  // namespace

Outcome<Operands> place_operands(Plane& plane, const Probabilities& probabilities) {
  Operands operands;
  FLASHLIFT_RETURN_IF_ERROR(place_queries_and_keys(plane, operands));
  FLASHLIFT_RETURN_IF_ERROR(plane.has_output() ? place_values_and_output(plane, probabilities, operands)
                                               : place_values_of_gradient(plane, probabilities, operands));
  return operands;
}

}  // namespace flashlift::stablehlo
