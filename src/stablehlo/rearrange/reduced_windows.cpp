// Row sums and maxima over windows, as XLA's passes write them: one window over all keys, or windows side by side,
// whose sums are summed again.

#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"
#include "stablehlo/rearrange/rearrange.h"

namespace flashlift::stablehlo {
namespace {

struct Windows {
  mlir::Value input;
  mlir::Value init;
  std::vector<int64_t> dims;  // of which each result is of several elements
  bool is_one_each = true;    // one window along each of these dimensions
};

// The numbers of an attribute with one number for each dimension, which is 1 where it is absent.
std::optional<llvm::SmallVector<int64_t>> numbers(mlir::Operation* op, llvm::StringRef name, size_t rank) {
  const auto array = op->getAttrOfType<mlir::DenseI64ArrayAttr>(name);
  llvm::SmallVector<int64_t> found(rank, 1);
  if (array) {
    found.assign(array.asArrayRef().begin(), array.asArrayRef().end());
  }
  return found.size() == rank ? std::optional(found) : std::nullopt;
}

// The windows of a reduce_window, if each element is in exactly one of them, and elements of the padding change
// nothing.
std::optional<Windows> side_by_side(mlir::Operation* op) {
  if (kind(op) != OpKind::kReduceWindow || op->getNumOperands() != 2 || !static_tensor(op->getResult(0)) ||
      !static_tensor(op->getOperand(0)) ||
      !mlir::isa<mlir::FloatType>(static_tensor(op->getOperand(0)).getElementType())) {
    return std::nullopt;
  }
  const auto init = splat(op->getOperand(1));
  const Reducer how = reducer(block(op));
  if (!(how == Reducer::kAdd && init == 0.0) && !(how == Reducer::kMaximum && init)) {
    return std::nullopt;
  }
  const auto from = shape(op->getOperand(0));
  const auto to = shape(op->getResult(0));
  const auto windows = numbers(op, "window_dimensions", from.size());
  const auto strides = numbers(op, "window_strides", from.size());
  const auto base = numbers(op, "base_dilations", from.size());
  const auto dilations = numbers(op, "window_dilations", from.size());
  const auto padding = op->getAttrOfType<mlir::DenseIntElementsAttr>("padding");
  if (!windows || !strides || !base || !dilations || to.size() != from.size() ||
      (padding && padding.getNumElements() != static_cast<int64_t>(2 * from.size()))) {
    return std::nullopt;
  }
  Windows found{.input = op->getOperand(0), .init = op->getOperand(1), .dims = {}};
  for (size_t d = 0; d < from.size(); ++d) {
    const auto pad = [&](size_t i) { return padding ? *(padding.value_begin<mlir::APInt>() + i) : mlir::APInt(64, 0); };
    const int64_t low = pad(2 * d).getSExtValue();
    const int64_t size = (*windows)[d];
    const int64_t stride = (*strides)[d];
    constexpr int64_t kMost = int64_t{1} << 30;
    const bool is_sane = low >= 0 && low < kMost && size > 0 && size < kMost && from[d] < kMost && to[d] < kMost;
    if (!is_sane || (*base)[d] != 1 || (*dilations)[d] != 1 || (to[d] > 1 && stride != size) ||
        to[d] * size < low + from[d]) {
      return std::nullopt;
    }
    if (size != 1) {
      found.dims.push_back(static_cast<int64_t>(d));
      found.is_one_each = found.is_one_each && to[d] == 1;
    }
  }
  return found.dims.empty() ? std::nullopt : std::optional(found);
}

}  // namespace

std::optional<Rearrangement> windows_as_reduction(mlir::Operation* op) {
  Rearrangement found;
  Builder builder(op, found.added);
  if (kind(op) == OpKind::kReduceWindow) {
    const auto windows = side_by_side(op);
    if (!windows || !windows->is_one_each) {
      return std::nullopt;
    }
    const auto element = mlir::cast<mlir::FloatType>(static_tensor(windows->input).getElementType());
    const auto init = mlir::DenseElementsAttr::get(mlir::RankedTensorType::get({}, element),
                                                   mlir::FloatAttr::get(element, *splat(windows->init)).getValue());
    const mlir::Value reduced =
        builder.reduce(op->getLoc(), windows->input, windows->dims,
                       reducer(block(op)) == Reducer::kAdd ? "stablehlo.add" : "stablehlo.maximum", init);
    found.product = reduced.getDefiningOp();
    replace(found, op->getResult(0), builder.reshape(op->getLoc(), reduced, shape(op->getResult(0))));
    return found;
  }
  const auto how = reduction(op);
  mlir::Value input = how && how->inputs.size() == 1 ? how->inputs[0] : mlir::Value();
  while (mlir::Operation* const inner = input ? input.getDefiningOp() : nullptr) {
    const auto windows = side_by_side(inner);
    if (!windows || reducer(block(inner)) != how->reducer || splat(how->inits[0]) != splat(windows->init) ||
        !llvm::all_of(windows->dims, [&](int64_t dim) { return llvm::is_contained(how->dims, dim); })) {
      break;
    }
    input = windows->input;
  }
  if (!input || input == how->inputs[0]) {
    return std::nullopt;
  }
  const mlir::Value reduced = builder.copy(op, {input, how->inits[0]});
  found.product = reduced.getDefiningOp();
  replace(found, op->getResult(0), reduced);
  return found;
}

}  // namespace flashlift::stablehlo
