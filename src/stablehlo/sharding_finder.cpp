#include "stablehlo/sharding_finder.h"

#include <algorithm>

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

using Axes = std::vector<std::string>;

constexpr size_t kFarthest = 20000;  // operations between a value and those it depends on

// --- How operations propagate the sharding of their operands ---

Sharding unsplit(const Sharding& like, size_t rank) { return {like.mesh, std::vector<Axes>(rank)}; }

// Combines the digits of one number: the axes stay with the most significant one.
Sharding through_reshape(const Sharding& from, llvm::ArrayRef<int64_t> source, llvm::ArrayRef<int64_t> target) {
  Sharding to = unsplit(from, target.size());
  size_t i = 0;
  size_t j = 0;
  while (i < source.size() && j < target.size()) {
    int64_t before = source[i];
    int64_t after = target[j];
    const size_t first = i;
    size_t major = j;
    while (after == 1 && before != 1 && major + 1 < target.size()) {
      after = target[++major];
    }
    j = major;
    while (before != after && (before < after ? i + 1 < source.size() : j + 1 < target.size())) {
      before < after ? before *= source[++i] : after *= target[++j];
    }
    const auto split = std::find_if(from.dims.begin() + static_cast<std::ptrdiff_t>(first),
                                    from.dims.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                    [](const Axes& axes) { return !axes.empty(); });
    const bool is_major = std::all_of(source.begin() + first, source.begin() + (split - from.dims.begin()),
                                      [](int64_t size) { return size == 1; });
    if (split != from.dims.begin() + static_cast<std::ptrdiff_t>(i) + 1 && is_major) {
      to.dims[major] = *split;
    }
    ++i;
    ++j;
  }
  return to;
}

// The same dimensions, some of which have another size.
std::optional<Sharding> through_sizes(std::optional<Sharding> from, llvm::ArrayRef<int64_t> source,
                                      llvm::ArrayRef<int64_t> target) {
  for (size_t i = 0; from && i < from->dims.size(); ++i) {
    if (source[i] != target[i]) {
      from->dims[i].clear();
    }
  }
  return from;
}

Sharding through_transpose(mlir::Operation* op, const Sharding& from) {
  Sharding to = unsplit(from, from.dims.size());
  for (const auto [i, dim] : llvm::enumerate(permutation(op))) {
    to.dims[i] = from.dims[static_cast<size_t>(dim)];
  }
  return to;
}

Sharding through_broadcast(mlir::Operation* op, const Sharding& from) {
  const auto sizes = shape(op->getResult(0));
  Sharding to = unsplit(from, sizes.size());
  for (const auto [i, dim] : llvm::enumerate(broadcast_dims(op))) {
    if (shape(op->getOperand(0))[i] == sizes[static_cast<size_t>(dim)]) {
      to.dims[static_cast<size_t>(dim)] = from.dims[i];
    }
  }
  return to;
}

std::optional<Sharding> through_product(mlir::Operation* op, const std::optional<Sharding>& left,
                                        const std::optional<Sharding>& right) {
  const auto dims = dot_dims(op);
  if (!dims || (!left && !right)) {
    return std::nullopt;
  }
  Sharding to = unsplit(left ? *left : *right, 0);
  const auto add_free = [&](unsigned operand, const std::optional<Sharding>& from, const std::vector<int64_t>& batch,
                            const std::vector<int64_t>& summed) {
    for (size_t i = 0; i < shape(op->getOperand(operand)).size(); ++i) {
      const auto dim = static_cast<int64_t>(i);
      if (std::find(batch.begin(), batch.end(), dim) == batch.end() &&
          std::find(summed.begin(), summed.end(), dim) == summed.end()) {
        to.dims.push_back(from ? from->dims[i] : Axes());
      }
    }
  };
  for (size_t i = 0; i < dims->lhs_batch.size(); ++i) {
    const Axes of_left = left ? left->dims[static_cast<size_t>(dims->lhs_batch[i])] : Axes();
    const Axes of_right = right ? right->dims[static_cast<size_t>(dims->rhs_batch[i])] : Axes();
    to.dims.push_back(of_left.empty() ? of_right : of_left);
  }
  add_free(0, left, dims->lhs_batch, dims->lhs_contract);
  add_free(1, right, dims->rhs_batch, dims->rhs_contract);
  return to;
}

// "[{"x", ?}, {?}]" leaves dimensions to the partitioner.
bool is_open(std::string_view text) { return text.find('?') != std::string_view::npos; }

// The axes of a dimension that are left to the partitioner within a manual computation.
Axes without(Axes axes, const Axes& manual) {
  std::erase_if(axes, [&](const std::string& axis) { return llvm::is_contained(manual, axis); });
  return axes;
}
}  // namespace

std::string_view shardy_text(mlir::Attribute attribute) {
  const auto opaque = mlir::dyn_cast_or_null<mlir::OpaqueAttr>(attribute);
  const bool is_sdy = opaque && opaque.getDialectNamespace() == "sdy";
  return is_sdy ? std::string_view(opaque.getAttrData().data(), opaque.getAttrData().size()) : std::string_view();
}

mlir::Attribute sdy_attribute(mlir::MLIRContext* context, const std::string& text) {
  return mlir::OpaqueAttr::get(mlir::StringAttr::get(context, "sdy"), text, mlir::NoneType::get(context));
}

mlir::Operation* end_of(mlir::Operation* computation) {
  const bool has_body = computation->getNumRegions() == 1 && computation->getRegion(0).hasOneBlock();
  mlir::Block* body = has_body ? &computation->getRegion(0).front() : nullptr;
  return body != nullptr && !body->empty() ? &body->back() : nullptr;
}

std::optional<Sharding> ShardingFinder::of(mlir::Value value, int depth) {
  constexpr int kDeepest = 2000;
  if (depth > kDeepest || found_.size() > kFarthest) {
    return std::nullopt;
  }
  const auto tensor = static_tensor(value);
  if (!tensor) {
    return std::nullopt;
  }
  if (const auto known = found_.find(value); known != found_.end()) {
    return known->second;
  }
  found_[value] = std::nullopt;  // until the loop's own value is known
  auto sharding = find(value, depth + 1);
  if (sharding &&
      (sharding->dims.size() != static_cast<size_t>(tensor.getRank()) || !meshes_.contains(sharding->mesh))) {
    sharding.reset();
  }
  found_[value] = sharding;
  return sharding;
}

std::optional<Sharding> ShardingFinder::find(mlir::Value value, int depth) {
  if (const mlir::Attribute said = annotations_.of(value)) {
    auto sharding = parse_sharding(shardy_text(said));
    if (!sharding || sharding->splits() || !is_open(shardy_text(said))) {
      return sharding;
    }
  }
  mlir::Operation* op = value.getDefiningOp();
  if (op == nullptr) {
    const auto argument = mlir::cast<mlir::BlockArgument>(value);
    const unsigned number = argument.getArgNumber();
    mlir::Operation* parent = argument.getOwner()->getParentOp();
    if (auto function = mlir::dyn_cast_or_null<mlir::func::FuncOp>(parent)) {
      return parse_sharding(shardy_text(function.getArgAttr(number, "sdy.sharding")));
    }
    if (parent != nullptr && kind(parent) == OpKind::kSdyManualComputation && number < parent->getNumOperands()) {
      return of_argument(parent, number, depth);
    }
    const bool is_loop = parent != nullptr && kind(parent) == OpKind::kWhile;
    return is_loop ? of_carried(parent, number, depth) : std::nullopt;
  }
  const unsigned number = mlir::cast<mlir::OpResult>(value).getResultNumber();
  const auto of_operand = [&](unsigned i) { return of(op->getOperand(i), depth); };
  switch (kind(op)) {
    case OpKind::kSdyShardingConstraint:
    case OpKind::kSdyReshard:
      return parse_sharding(shardy_text(op->getAttr("sharding")));
    case OpKind::kSdyManualComputation:
      return of_result(op, number, depth);
    case OpKind::kWhile:
      return of_carried(op, number, depth);
    case OpKind::kOptimizationBarrier:
      return number < op->getNumOperands() ? of_operand(number) : std::nullopt;
    case OpKind::kTranspose: {
      const auto from = of_operand(0);
      return from ? std::optional(through_transpose(op, *from)) : std::nullopt;
    }
    case OpKind::kReshape: {
      const auto from = of_operand(0);
      return from ? std::optional(through_reshape(*from, shape(op->getOperand(0)), shape(value))) : std::nullopt;
    }
    case OpKind::kBroadcastInDim: {
      const auto from = of_operand(0);
      return from ? std::optional(through_broadcast(op, *from)) : std::nullopt;
    }
    case OpKind::kSlice:
    case OpKind::kDynamicSlice:
    case OpKind::kConcatenate:
      return through_sizes(of_operand(0), shape(op->getOperand(0)), shape(value));
    case OpKind::kDynamicUpdateSlice: {  // of a tensor of zeros, if a loop stores a value of each iteration
      const auto whole = of_operand(0);
      return whole && whole->splits() ? whole : through_sizes(of_operand(1), shape(op->getOperand(1)), shape(value));
    }
    case OpKind::kDotGeneral:
      return through_product(op, of_operand(0), of_operand(1));
    default: {
      if (!is_elementwise(op)) {
        return std::nullopt;
      }
      std::optional<Sharding> first;
      for (unsigned i = 0; i < op->getNumOperands() && !(first && first->splits()); ++i) {
        const auto from = of_operand(i);
        first = from && (!first || from->splits()) ? from : first;
      }
      return first;
    }
  }
}

std::optional<Sharding> ShardingFinder::of_carried(mlir::Operation* loop, unsigned number, int depth) {
  if (number >= loop->getNumOperands()) {
    return std::nullopt;
  }
  auto start = of(loop->getOperand(number), depth);
  if (start && start->splits()) {
    return start;
  }
  mlir::Block& body = block(loop, 1);
  const bool has_end = !body.empty() && number < body.back().getNumOperands();
  auto end = has_end ? of(body.back().getOperand(number), depth) : std::nullopt;
  return end ? end : start;
}

std::optional<Sharding> ShardingFinder::of_argument(mlir::Operation* computation, unsigned number, int depth) {
  const auto shardings = parse_shardings(shardy_text(computation->getAttr("in_shardings")));
  if (number >= shardings.size()) {
    return std::nullopt;
  }
  const Axes manual = parse_manual_axes(shardy_text(computation->getAttr("manual_axes")));
  const auto outside = of(computation->getOperand(number), depth);
  Sharding sharding = shardings[number];
  for (size_t i = 0; i < sharding.dims.size(); ++i) {
    sharding.dims[i] = without(sharding.dims[i], manual);
    const bool is_known = outside && outside->mesh == sharding.mesh && i < outside->dims.size();
    if (sharding.dims[i].empty() && is_known) {  // open dimensions are propagated
      sharding.dims[i] = without(outside->dims[i], manual);
    }
  }
  return sharding;
}

std::optional<Sharding> ShardingFinder::of_result(mlir::Operation* computation, unsigned number, int depth) {
  const auto shardings = parse_shardings(shardy_text(computation->getAttr("out_shardings")));
  if (number >= shardings.size()) {
    return std::nullopt;
  }
  Sharding sharding = shardings[number];
  mlir::Operation* const end = end_of(computation);
  const auto inside =
      end != nullptr && number < end->getNumOperands() ? of(end->getOperand(number), depth) : std::nullopt;
  for (size_t i = 0; inside && inside->mesh == sharding.mesh && i < sharding.dims.size(); ++i) {
    for (const std::string& axis : i < inside->dims.size() ? inside->dims[i] : Axes()) {
      if (!llvm::is_contained(sharding.dims[i], axis)) {
        sharding.dims[i].push_back(axis);
      }
    }
  }
  return sharding;
}

std::optional<Sharding> ShardingFinder::of(const OperandView& view) {
  auto sharding = view.source ? of(view.source) : std::nullopt;
  if (sharding && !view.reshape.empty()) {
    sharding = through_reshape(*sharding, shape(view.source), view.reshape);
  }
  if (sharding) {
    sharding->dims.insert(sharding->dims.begin(), view.repeated.size(), {});
  }
  if (sharding && !view.permutation.empty()) {
    const Sharding before = *sharding;
    for (size_t i = 0; i < view.permutation.size(); ++i) {
      sharding->dims[i] = before.dims[static_cast<size_t>(view.permutation[i])];
    }
  }
  return sharding;
}

}  // namespace flashlift::stablehlo
