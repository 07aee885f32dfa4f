// Row sums and maxima that are written as those of several slices, such as two blocks of keys.

#include <algorithm>

#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"
#include "stablehlo/rearrange/rearrange.h"

namespace flashlift::stablehlo {
namespace {

// The reduction of a slice along the dimension that is sliced.
struct Part {
  mlir::Operation* keeps_dim = nullptr;  // a reshape or broadcast of the result; null if there is none
  mlir::Operation* reduce = nullptr;
  mlir::Value whole;
  int64_t dim = 0;
  int64_t start = 0;
  int64_t limit = 0;
};

std::optional<Part> part_of(mlir::Value value, Reducer reducer) {
  Part part{.reduce = value.getDefiningOp()};
  if (kind(value) == OpKind::kReshape || kind(value) == OpKind::kBroadcastInDim) {
    part.keeps_dim = part.reduce;
    part.reduce = part.reduce->getOperand(0).getDefiningOp();
  }
  const auto how =
      part.reduce != nullptr && kind(part.reduce) == OpKind::kReduce ? reduction(part.reduce) : std::nullopt;
  if (!how || how->reducer != reducer || how->inputs.size() != 1 || how->dims.size() != 1) {
    return std::nullopt;
  }
  mlir::Operation* const slice = defining(how->inputs[0], OpKind::kSlice);
  const auto bounds = slice != nullptr ? slice_bounds(slice) : std::nullopt;
  if (!bounds || !static_tensor(slice->getOperand(0))) {
    return std::nullopt;
  }
  part.whole = slice->getOperand(0);
  part.dim = how->dims[0];
  for (size_t d = 0; d < shape(part.whole).size(); ++d) {
    const bool is_cut = static_cast<int64_t>(d) == part.dim;
    if (bounds->stride[d] != 1 || (!is_cut && (bounds->start[d] != 0 || bounds->limit[d] != shape(part.whole)[d]))) {
      return std::nullopt;
    }
  }
  part.start = bounds->start[static_cast<size_t>(part.dim)];
  part.limit = bounds->limit[static_cast<size_t>(part.dim)];
  return part;
}

bool are_alike(mlir::Operation* x, mlir::Operation* y) {
  return (x == nullptr) == (y == nullptr) &&
         (x == nullptr || (have_equal_attributes(x, y) && x->getResultTypes() == y->getResultTypes()));
}

// The reductions of which the operation and those before it are the sum or the maximum.
std::vector<Part> parts_of(mlir::Operation* op, Reducer reducer) {
  constexpr size_t kMost = 16;
  std::vector<Part> parts;
  std::vector<mlir::Value> pending(op->operand_begin(), op->operand_end());
  while (!pending.empty()) {
    const mlir::Value value = pending.back();
    pending.pop_back();
    if (kind(value) == kind(op)) {
      const auto operands = value.getDefiningOp()->getOperands();
      pending.insert(pending.end(), operands.begin(), operands.end());
      if (pending.size() + parts.size() > kMost) {
        return {};
      }
      continue;
    }
    auto part = part_of(value, reducer);
    if (!part) {
      return {};
    }
    parts.push_back(*std::move(part));
  }
  return parts;
}

}  // namespace

std::optional<Rearrangement> slices_as_reduction(mlir::Operation* op) {
  const bool adds = kind(op) == OpKind::kAdd;
  std::vector<Part> parts = parts_of(op, adds ? Reducer::kAdd : Reducer::kMaximum);
  if (parts.size() < 2) {
    return std::nullopt;
  }
  std::ranges::sort(parts, {}, &Part::start);
  const Part& first = parts[0];
  const auto init = splat(first.reduce->getOperand(1));
  int64_t end = 0;
  for (const Part& part : parts) {
    if (part.whole != first.whole || part.dim != first.dim || part.start != end || !init ||
        splat(part.reduce->getOperand(1)) != init || !are_alike(part.keeps_dim, first.keeps_dim)) {
      return std::nullopt;
    }
    end = part.limit;
  }
  if (end != size_of(first.whole, first.dim) || (adds && *init != 0.0)) {
    return std::nullopt;
  }
  Rearrangement found;
  Builder builder(op, found.added);
  mlir::Value result = builder.copy(first.reduce, {first.whole, first.reduce->getOperand(1)});
  found.product = result.getDefiningOp();
  if (first.keeps_dim != nullptr) {
    result = builder.copy(first.keeps_dim, result);
  }
  replace(found, op->getResult(0), result);
  return found;
}

}  // namespace flashlift::stablehlo
