// Stage 1: reads the probabilities as a formula of the score, over atoms of their dimensions.
#include <algorithm>

#include "stablehlo/lift/products.h"
#include "stablehlo/lift/stages.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

constexpr int kAtomsForOperands = 8;  // at least this many stay free

// Creates atoms for each dimension of the probabilities. The dimensions that the second product sums over are together
// the key.
Outcome<Probabilities> place_probabilities(Plane& plane, const DigitSizes& digits) {
  const auto p_shape = shape(plane.pair.probabilities());
  const OperandDims dims = operand_dims(plane.pair.second, plane.pair.side);
  Probabilities found{.key_dims = plane.has_output() ? dims.contract : dims.free};
  std::sort(found.key_dims.begin(), found.key_dims.end());
  if (found.key_dims.empty()) {
    return refuse<Reason::kNoKeyDimension>();
  }
  for (size_t d = 0; d < p_shape.size(); ++d) {
    if (p_shape[d] == 0) {
      return refuse<Reason::kEmptyDimension>();
    }
    Index index;
    if (std::find(found.key_dims.begin(), found.key_dims.end(), static_cast<int64_t>(d)) != found.key_dims.end()) {
      plane.sizes[kKeyAtom] *= p_shape[d];
      index.affine = affine_atom(kKeyAtom);  // if several dimensions are the key, new_evaluator() gives each its digit
    } else {
      int64_t stride = p_shape[d];
      for (size_t digit = 0; digit < digits[d].size(); ++digit) {
        const int64_t size = digits[d][digit];
        stride /= size;
        if (size == 1) {
          continue;
        }
        if (plane.next_atom + kAtomsForOperands >= kFirstBound) {
          return refuse<Reason::kTooManyDimensions>();
        }
        const int atom = plane.new_atom(size);
        plane.origin[static_cast<size_t>(atom)] = {static_cast<int64_t>(d), digit};
        index.affine = affine_sum(index.affine, affine_product(affine_atom(atom), stride));
      }
    }
    found.indices.push_back(std::move(index));
  }
  return found;
}

}  // namespace

Outcome<Evaluator> new_evaluator(Plane& plane, const std::vector<int64_t>& key_dims, std::vector<Index>& indices) {
  Evaluator evaluator(
      plane.arena, plane.pair.first, plane.sizes, plane.options.opens_reductions, plane.half,
      [&plane](mlir::Operation* op) { return plane.depends(op); }, *plane.options.work);
  if (key_dims.size() > 1) {
    std::vector<int64_t> key_sizes;
    for (const int64_t dim : key_dims) {
      key_sizes.push_back(shape(plane.pair.probabilities())[static_cast<size_t>(dim)]);
    }
    const auto digits = evaluator.key_digits(key_sizes);
    if (!digits) {
      return refuse<Reason::kTooManyKeyDimensions>();
    }
    for (size_t i = 0; i < key_dims.size(); ++i) {
      indices[static_cast<size_t>(key_dims[i])].affine = (*digits)[i];
    }
  }
  return evaluator;
}

Outcome<Probabilities> read_probabilities(Plane& plane, const DigitSizes& digits) {
  FLASHLIFT_ASSIGN_OR_RETURN(Probabilities found, place_probabilities(plane, digits));
  FLASHLIFT_ASSIGN_OR_RETURN(Evaluator evaluator, new_evaluator(plane, found.key_dims, found.indices));
  plane.evaluator.emplace(std::move(evaluator));
  found.formula = plane.evaluator->evaluate(plane.pair.probabilities(), found.indices);
  if (found.formula == kNoSym) {
    plane.request_split(plane.evaluator->split_request());
    return plane.evaluator->why_not();
  }
  if (plane.evaluator->score_indices().empty()) {
    return refuse<Reason::kNoScore>();
  }
  std::copy(plane.evaluator->atom_sizes().begin() + kFirstBound, plane.evaluator->atom_sizes().end(),
            plane.sizes.begin() + kFirstBound);
  found.key_digits = plane.evaluator->smallest_key_digits();
  return found;
}

}  // namespace flashlift::stablehlo
