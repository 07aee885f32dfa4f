// Operations that only move elements: converts the indices of a result to those of an operand.
#include <algorithm>

#include "stablehlo/lift/evaluate.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {

SymId Evaluator::evaluate_broadcast(mlir::Operation* op, const std::vector<Index>& indices) {
  const mlir::Value operand = op->getOperand(0);
  const auto dims = broadcast_dims(op);
  const auto operand_shape = shape(operand);
  std::vector<Index> operand_indices(operand_shape.size());
  for (size_t i = 0; i < operand_shape.size(); ++i) {
    if (operand_shape[i] != 1) {
      operand_indices[i] = indices[dims[i]];
    }
  }
  return evaluate(operand, operand_indices);
}

SymId Evaluator::evaluate_reshape(mlir::Value value, const std::vector<Index>& indices) {
  const mlir::Value operand = value.getDefiningOp()->getOperand(0);
  const auto from = shape(value);
  const auto to = shape(operand);
  std::vector<Affine> affine;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i].general != kNoSym) {
      return leaf(value, indices);
    }
    affine.push_back(from[i] == 1 ? Affine{} : indices[i].affine);
  }
  const Affine offset = linearize(affine, {from.begin(), from.end()});
  // A value that does not depend on the scores is read as a tensor, without splitting the key. A product is an
  // exception: it may be that of the output's gradient and the values.
  const Delinearized split = depends_on_score_(value.getDefiningOp()) || is_product(operand.getDefiningOp())
                                 ? delinearize_splitting_keys(offset, {to.begin(), to.end()})
                                 : delinearize(offset, {to.begin(), to.end()}, atom_sizes_);
  if (!split.indices) {
    const int atom = split.request.atom;
    if (atom > kKeyAtom && atom < kFirstBound) {
      split_request_ = split.request;
      return fail(refuse<Reason::kSplitIndex>());  // the caller reads split_request() first
    }
    return leaf(value, indices);
  }
  std::vector<Index> operand_indices;
  for (const Affine& index : *split.indices) {
    operand_indices.push_back({.affine = index});
  }
  return evaluate(operand, operand_indices);
}

SymId Evaluator::evaluate_slice(mlir::Operation* op, const std::vector<Index>& indices) {
  const auto bounds = slice_bounds(op);
  std::vector<Index> operand_indices;
  for (size_t i = 0; i < indices.size(); ++i) {
    Index index = indices[i];
    if (bounds->stride[i] != 1) {
      if (index.general != kNoSym) {
        return leaf(op->getResult(0), indices);
      }
      index.affine = affine_product(index.affine, bounds->stride[i]);
    }
    operand_indices.push_back(shifted(index, bounds->start[i]));
  }
  return evaluate(op->getOperand(0), operand_indices);
}

SymId Evaluator::evaluate_dynamic_slice(mlir::Operation* op, const std::vector<Index>& indices) {
  const auto operand_shape = shape(op->getOperand(0));
  const auto sizes = dynamic_slice_sizes(op);
  std::vector<Index> operand_indices;
  for (size_t i = 0; i < indices.size(); ++i) {
    const int64_t last_start = operand_shape[i] - sizes[i];
    if (last_start == 0) {  // start indices are clamped, so that the start can only be 0
      operand_indices.push_back(indices[i]);
      continue;
    }
    SymId start = evaluate(op->getOperand(1 + i), {});
    if (start == kNoSym) {
      return kNoSym;
    }
    const Type type = arena_[start].type;
    start = arena_.op(Op::k_max, {start, arena_.constant(type, 0)});
    start = arena_.op(Op::k_min, {start, arena_.constant(type, last_start)});
    const SymId sum = arena_.op(Op::k_add, {index_formula(indices[i], type), start});
    operand_indices.push_back({.affine = {}, .general = sum});
  }
  return evaluate(op->getOperand(0), operand_indices);
}

// Whether the index crosses the boundary within a reduction. If so, requests that the reduction is evaluated in two
// pieces.
bool Evaluator::split_range(const Index& index, int64_t boundary) {
  if (index.general != kNoSym || index.affine.terms.size() != 1 || index.affine.terms[0].second != 1 ||
      active_ranges_.empty() || active_ranges_.back() != index.affine.terms[0].first) {
    return false;
  }
  const Range range = affine_range(index.affine, atom_sizes_);
  if (range.low >= boundary || range.high < boundary) {
    return false;
  }
  range_split_ = {active_ranges_.back(), boundary - range.low};
  return true;
}

// A row may be padded, for example by a zero logit that makes a softmax with a sink.
SymId Evaluator::evaluate_pad(mlir::Value value, const std::vector<Index>& indices) {
  mlir::Operation* op = value.getDefiningOp();
  const auto how = padding(op);
  const auto operand_shape = shape(op->getOperand(0));
  std::vector<Index> operand_indices;
  for (size_t d = 0; d < indices.size(); ++d) {
    const int64_t begin = how->low[d];
    const int64_t end = begin + operand_shape[d];
    if (how->interior[d] != 0 || indices[d].general != kNoSym) {
      return leaf(value, indices);
    }
    const Range range = affine_range(indices[d].affine, atom_sizes_);
    if (range.high < begin || range.low >= end) {
      return evaluate(op->getOperand(1), {});
    }
    if (range.low < begin || range.high >= end) {
      return split_range(indices[d], begin) || split_range(indices[d], end) ? kNoSym : leaf(value, indices);
    }
    operand_indices.push_back(shifted(indices[d], -begin));
  }
  return evaluate(op->getOperand(0), operand_indices);
}

SymId Evaluator::evaluate_concatenate(mlir::Value value, const std::vector<Index>& indices) {
  mlir::Operation* op = value.getDefiningOp();
  const size_t dim = static_cast<size_t>(*concat_dim(op));
  const Index& index = indices[dim];
  if (index.general != kNoSym) {
    return leaf(value, indices);
  }
  const Range range = affine_range(index.affine, atom_sizes_);
  int64_t start = 0;
  for (const mlir::Value operand : op->getOperands()) {
    const int64_t end = start + shape(operand)[dim];
    if (range.low >= start && range.high < end) {
      std::vector<Index> operand_indices = indices;
      operand_indices[dim] = shifted(index, -start);
      return evaluate(operand, operand_indices);
    }
    if (split_range(index, end)) {
      return kNoSym;
    }
    start = end;
  }
  return leaf(value, indices);
}

// result[batch..., offset...] = operand[start[batch...] + offset...]. The start is clamped so that the slice fits.
SymId Evaluator::evaluate_gather(mlir::Value value, const std::vector<Index>& indices) {
  mlir::Operation* op = value.getDefiningOp();
  const auto how = gather(op);
  const mlir::Value operand = op->getOperand(0);
  const mlir::Value starts = op->getOperand(1);
  const auto operand_shape = shape(operand);
  const GatherDims& dims = how->dims;
  const auto contains = [](const std::vector<int64_t>& list, size_t i) {
    return std::find(list.begin(), list.end(), static_cast<int64_t>(i)) != list.end();
  };
  std::vector<Index> batch;
  std::vector<Index> offsets;
  for (size_t i = 0; i < indices.size(); ++i) {
    (contains(dims.offset_dims, i) ? offsets : batch).push_back(indices[i]);
  }
  std::vector<Index> operand_indices(operand_shape.size());
  size_t next_offset = 0;
  for (size_t i = 0; i < operand_shape.size(); ++i) {
    if (!contains(dims.collapsed_slice_dims, i) && !contains(dims.operand_batching_dims, i)) {
      operand_indices[i] = offsets[next_offset++];
    }
  }
  for (size_t k = 0; k < dims.operand_batching_dims.size(); ++k) {
    const int64_t at = dims.start_indices_batching_dims[k];
    operand_indices[dims.operand_batching_dims[k]] = batch[at > dims.index_vector_dim ? at - 1 : at];
  }
  for (size_t k = 0; k < dims.start_index_map.size(); ++k) {
    const size_t d = static_cast<size_t>(dims.start_index_map[k]);
    const int64_t last_start = operand_shape[d] - how->slice_sizes[d];
    if (last_start == 0) {
      continue;
    }
    std::vector<Index> start_indices = batch;
    if (dims.index_vector_dim < static_cast<int64_t>(shape(starts).size())) {
      start_indices.insert(start_indices.begin() + dims.index_vector_dim,
                           Index{.affine = {.constant = static_cast<int64_t>(k), .terms = {}}});
    }
    SymId start = evaluate(starts, start_indices);
    if (start == kNoSym) {
      return kNoSym;
    }
    const Type type = arena_[start].type;
    if (how->slice_sizes[d] != 1) {  // a load clamps an index, but not the start of a longer slice
      start = arena_.op(Op::k_max, {start, arena_.constant(type, 0)});
      start = arena_.op(Op::k_min, {start, arena_.constant(type, last_start)});
      start = arena_.op(Op::k_add, {start, index_formula(operand_indices[d], type)});
    }
    operand_indices[d] = {.affine = {}, .general = start};
  }
  // Only a load clamps indices like the gather does: the operand is therefore read as a tensor.
  return leaf(operand, operand_indices);
}

}  // namespace flashlift::stablehlo
