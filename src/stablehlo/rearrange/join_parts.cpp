#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "llvm/ADT/DenseMap.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/lift/same_value.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"
#include "stablehlo/rearrange/rearrange.h"

namespace flashlift::stablehlo {
namespace {

// The type of both values, concatenated along `dim`.
mlir::RankedTensorType joined_type(mlir::Value x, mlir::Value y, int64_t dim) {
  return with_size(x, dim, size_of(x, dim) + size_of(y, dim));
}

// Concatenates two values; joins the products that both depend on into one.
class Joiner {
 public:
  Joiner(mlir::Operation* before, std::vector<mlir::Operation*>& added) : builder_(before, added) {}

  // x + y as the result of one product, or null.
  mlir::Value add(mlir::Value x, mlir::Value y) {
    mlir::Operation* const of_x = x.getDefiningOp();
    mlir::Operation* const of_y = y.getDefiningOp();
    if (of_x == nullptr || of_y == nullptr || of_x == of_y || x.getType() != y.getType() ||
        !have_equal_attributes(of_x, of_y)) {
      return {};
    }
    switch (kind(of_x)) {
      case OpKind::kDotGeneral:
        return add_products(of_x, of_y);
      case OpKind::kTranspose:
      case OpKind::kReshape: {
        if (of_x->getOperand(0).getType() != of_y->getOperand(0).getType()) {
          return {};
        }
        const mlir::Value inner = add(of_x->getOperand(0), of_y->getOperand(0));
        return inner ? builder_.like(of_x, inner, x.getType()) : inner;
      }
      case OpKind::kDivide: {  // by the same row sums
        if (!same_(of_x->getOperand(1), of_y->getOperand(1))) {
          return {};
        }
        const mlir::Value inner = add(of_x->getOperand(0), of_y->getOperand(0));
        return inner ? builder_.like(of_x, {inner, with_joined_scores(of_x->getOperand(1))}, x.getType()) : inner;
      }
      default:
        return {};
    }
  }

  // The value, computed from joined scores where it depends on both parts of them.
  mlir::Value with_joined_scores(mlir::Value value);

  // An operation after the sum of two products, applied to the joined product.
  mlir::Value behind(mlir::Operation* op, mlir::Value joined) {
    llvm::SmallVector<mlir::Value> operands{joined};
    if (op->getNumOperands() == 2) {
      operands.push_back(with_joined_scores(op->getOperand(1)));
    }
    return builder_.like(op, operands, op->getResult(0).getType());
  }

  mlir::Operation* product() const { return product_; }
  const std::set<mlir::Operation*>& joined_products() const { return joined_products_; }

 private:
  mlir::Value add_products(mlir::Operation* x, mlir::Operation* y);
  mlir::Value join(mlir::Value x, mlir::Value y, int64_t dim);
  mlir::Value join_uncached(mlir::Value x, mlir::Value y, int64_t dim);
  // Each replaces two operations by one with joined operands, or returns null.
  mlir::Value join_broadcasts(mlir::Operation* x, mlir::Operation* y, int64_t dim);
  mlir::Value join_products(mlir::Operation* x, mlir::Operation* y, int64_t dim);
  mlir::Value join_elementwise(mlir::Operation* x, mlir::Operation* y, int64_t dim);
  mlir::Value join_select(mlir::Operation* select, unsigned masked_at, mlir::Value x, mlir::Value y, int64_t dim);
  mlir::Value join_reductions(mlir::Operation* op);
  mlir::Value side_by_side(mlir::Value x, mlir::Value y, int64_t dim) {
    return builder_.concatenate(x.getLoc(), x, y, dim);
  }
  bool is_limited() { return --left_ < 0; }

  Builder builder_;
  SameValues same_;
  std::map<std::tuple<const void*, const void*, int64_t>, mlir::Value> joined_;
  llvm::DenseMap<mlir::Value, mlir::Value> rebuilt_;
  mlir::Operation* product_ = nullptr;          // of joined probabilities and values
  std::set<mlir::Operation*> joined_products_;  // products of scores, whose results are parts of another product's
  int left_ = 400;                              // the number of operations that may still be visited
};

mlir::Value Joiner::add_products(mlir::Operation* x, mlir::Operation* y) {
  const OperandDims lhs = operand_dims(x, 0);
  const OperandDims rhs = operand_dims(x, 1);
  if (!is_product(x) || !is_product(y) || lhs.contract.size() != 1) {
    return {};
  }
  for (unsigned side = 0; side < 2; ++side) {
    const int64_t dim = (side == 0 ? lhs : rhs).contract[0];
    const mlir::Value a = x->getOperand(side);
    const mlir::Value b = y->getOperand(side);
    if (with_size(a, dim, 1) != with_size(b, dim, 1)) {
      return {};
    }
  }
  const mlir::Value a = join(x->getOperand(0), y->getOperand(0), lhs.contract[0]);
  const mlir::Value b = join(x->getOperand(1), y->getOperand(1), rhs.contract[0]);
  const mlir::Value made = builder_.like(x, {a, b}, x->getResult(0).getType());
  product_ = made.getDefiningOp();
  return made;
}

mlir::Value Joiner::join(mlir::Value x, mlir::Value y, int64_t dim) {
  const auto key = std::tuple(x.getAsOpaquePointer(), y.getAsOpaquePointer(), dim);
  if (const auto known = joined_.find(key); known != joined_.end()) {
    return known->second;
  }
  const mlir::Value made = join_uncached(x, y, dim);
  joined_[key] = made;
  return made;
}

// A slice along one dimension of a value.
struct Part {
  mlir::Value of;
  int64_t start = 0;
  int64_t end = 0;
};
std::optional<Part> part_of(mlir::Value value, int64_t dim) {
  mlir::Operation* op = value.getDefiningOp();
  const auto how = op && kind(op) == OpKind::kSlice ? slice_bounds(op) : std::nullopt;
  if (!how) {
    return std::nullopt;
  }
  Part part{.of = op->getOperand(0)};
  for (size_t d = 0; d < how->start.size(); ++d) {
    if (how->stride[d] != 1) {
      return std::nullopt;
    }
    if (static_cast<int64_t>(d) == dim) {
      part.start = how->start[d];
      part.end = how->limit[d];
    } else if (how->start[d] != 0 || how->limit[d] != shape(part.of)[d]) {
      return std::nullopt;
    }
  }
  return part;
}

// The operand of a select that is a constant, with which the select masks the other operand.
std::optional<unsigned> masked_operand(mlir::Operation* op) {
  if (kind(op) != OpKind::kSelect) {
    return std::nullopt;
  }
  return splat(op->getOperand(2)) ? std::optional(2U) : splat(op->getOperand(1)) ? std::optional(1U) : std::nullopt;
}

mlir::Value Joiner::join_uncached(mlir::Value x, mlir::Value y, int64_t dim) {
  mlir::Operation* const of_x = x.getDefiningOp();
  mlir::Operation* const of_y = y.getDefiningOp();
  const auto are_static = [](mlir::Operation* op) {
    return llvm::all_of(op->getOperands(), [](mlir::Value operand) { return static_tensor(operand) != nullptr; });
  };
  if (of_x == nullptr || of_y == nullptr || of_x->getBlock() != of_y->getBlock() || is_limited() || !are_static(of_x) ||
      !are_static(of_y)) {
    return side_by_side(x, y, dim);
  }
  const auto part_x = part_of(x, dim);
  const auto part_y = part_of(y, dim);
  if (part_x && part_y && part_x->of == part_y->of && part_x->start == 0 && part_x->end == part_y->start &&
      part_y->end == size_of(part_x->of, dim)) {
    return with_joined_scores(part_x->of);
  }
  auto elements_x = constant(x);
  const auto elements_y = constant(y);
  if (elements_x && elements_y && elements_x.isSplat() && elements_y.isSplat() &&
      elements_x.getSplatValue<mlir::Attribute>() == elements_y.getSplatValue<mlir::Attribute>()) {
    return builder_.constant(x.getLoc(), elements_x.resizeSplat(joined_type(x, y, dim)));
  }
  const auto masked_x = masked_operand(of_x);
  const auto masked_y = masked_operand(of_y);
  if (masked_x && masked_x != masked_y) {
    return join_select(of_x, *masked_x, x, y, dim);
  }
  if (masked_y && masked_x != masked_y) {
    return join_select(of_y, *masked_y, x, y, dim);
  }
  mlir::Value made;
  if (kind(of_x) == OpKind::kBroadcastInDim) {
    made = join_broadcasts(of_x, of_y, dim);
  } else if (have_equal_attributes(of_x, of_y)) {
    switch (kind(of_x)) {
      case OpKind::kTranspose: {
        const int64_t inner = permutation(of_x)[static_cast<size_t>(dim)];
        made = builder_.like(of_x, join(of_x->getOperand(0), of_y->getOperand(0), inner), joined_type(x, y, dim));
        break;
      }
      case OpKind::kDotGeneral:
        made = join_products(of_x, of_y, dim);
        break;
      default:
        made = join_elementwise(of_x, of_y, dim);
    }
  }
  return made ? made : side_by_side(x, y, dim);
}

mlir::Value Joiner::join_broadcasts(mlir::Operation* x, mlir::Operation* y, int64_t dim) {
  if (kind(y) != OpKind::kBroadcastInDim || broadcast_dims(x) != broadcast_dims(y)) {
    return {};
  }
  const mlir::Value a = x->getOperand(0);
  const mlir::Value b = y->getOperand(0);
  const auto dims = broadcast_dims(x);
  const auto type = joined_type(x->getResult(0), y->getResult(0), dim);
  const auto* const at = std::find(dims.begin(), dims.end(), dim);
  const int64_t inner = at - dims.begin();
  if (at == dims.end() || (size_of(a, inner) == 1 && size_of(b, inner) == 1)) {
    return a.getType() == b.getType() && same_(a, b)
               ? builder_.broadcast(x->getLoc(), with_joined_scores(a), type, dims)
               : mlir::Value();
  }
  if (size_of(a, inner) != size_of(x->getResult(0), dim) || size_of(b, inner) != size_of(y->getResult(0), dim) ||
      with_size(a, inner, 1) != with_size(b, inner, 1)) {
    return {};
  }
  return builder_.broadcast(x->getLoc(), join(a, b, inner), type, dims);
}

mlir::Value Joiner::join_products(mlir::Operation* x, mlir::Operation* y, int64_t dim) {
  if (!is_product(x) || !is_product(y) || x == y) {  // the same scores twice are not two parts
    return {};
  }
  // Result dimensions: batch, then the free ones of the left operand, then those of the right one.
  const OperandDims lhs = operand_dims(x, 0);
  const OperandDims rhs = operand_dims(x, 1);
  const auto batch = static_cast<int64_t>(lhs.batch.size());
  const auto lhs_end = batch + static_cast<int64_t>(lhs.free.size());
  if (dim < batch) {
    return {};
  }
  const unsigned side = dim < lhs_end ? 0 : 1;
  const int64_t inner =
      side == 0 ? lhs.free[static_cast<size_t>(dim - batch)] : rhs.free[static_cast<size_t>(dim - lhs_end)];
  if (!same_(x->getOperand(1 - side), y->getOperand(1 - side)) ||
      with_size(x->getOperand(side), inner, 1) != with_size(y->getOperand(side), inner, 1)) {
    return {};
  }
  joined_products_.insert({x, y});
  mlir::Value operands[2];
  operands[side] = join(x->getOperand(side), y->getOperand(side), inner);
  operands[1 - side] = x->getOperand(1 - side);
  return builder_.like(x, operands, joined_type(x->getResult(0), y->getResult(0), dim));
}

mlir::Value Joiner::join_elementwise(mlir::Operation* x, mlir::Operation* y, int64_t dim) {
  if (!is_elementwise(x) || x->getNumOperands() != y->getNumOperands()) {
    return {};
  }
  llvm::SmallVector<mlir::Value> operands;
  for (const auto [a, b] : llvm::zip_equal(x->getOperands(), y->getOperands())) {
    if (shape(a) != shape(x->getResult(0)) || shape(b) != shape(y->getResult(0)) ||
        static_tensor(a).getElementType() != static_tensor(b).getElementType()) {
      return {};
    }
    operands.push_back(join(a, b, dim));
  }
  return builder_.like(x, operands, joined_type(x->getResult(0), y->getResult(0), dim));
}

// Joins a masked part with one that is not masked, or whose select has its operands in the other order: the latter gets
// a mask that keeps everything. `masked_at`: the select's operand that is the constant.
mlir::Value Joiner::join_select(mlir::Operation* select, unsigned masked_at, mlir::Value x, mlir::Value y,
                                int64_t dim) {
  const bool is_first = select->getResult(0) == x;
  const mlir::Value other = is_first ? y : x;
  const mlir::Location location = select->getLoc();
  const auto side_by_side = [&](mlir::Value own, mlir::Value others) {
    return is_first ? builder_.concatenate(location, own, others, dim)
                    : builder_.concatenate(location, others, own, dim);
  };
  const double masked = *splat(select->getOperand(masked_at));
  const mlir::Value inner = select->getOperand(3 - masked_at);
  const auto element = mlir::dyn_cast<mlir::FloatType>(static_tensor(other).getElementType());
  if (!is_elementwise(select) || !element) {
    return side_by_side(select->getResult(0), other);
  }
  auto boolean = static_tensor(select->getOperand(0)).clone(shape(other));
  const mlir::Value all = builder_.constant(location, mlir::DenseElementsAttr::get(boolean, masked_at == 2));
  const mlir::Value condition = side_by_side(select->getOperand(0), all);
  const mlir::Value kept = is_first ? join(inner, y, dim) : join(x, inner, dim);
  auto type = mlir::cast<mlir::RankedTensorType>(kept.getType());
  const mlir::Value low =
      builder_.constant(location, mlir::DenseElementsAttr::get(type, mlir::FloatAttr::get(element, masked).getValue()));
  return masked_at == 2 ? builder_.like(select, {condition, kept, low}, type)
                        : builder_.like(select, {condition, low, kept}, type);
}

// A reduction over the keys, followed by broadcasts and reshapes.
struct Reduced {
  mlir::Operation* reduce = nullptr;
  std::vector<mlir::Operation*> behind;  // these broadcasts and reshapes, in the order of computation
};
std::optional<Reduced> reduced(mlir::Value value) {
  Reduced found;
  for (mlir::Operation* op = value.getDefiningOp(); op != nullptr; op = op->getOperand(0).getDefiningOp()) {
    if (kind(op) == OpKind::kReduce) {
      found.reduce = op;
      std::reverse(found.behind.begin(), found.behind.end());
      return found;
    }
    if (kind(op) != OpKind::kBroadcastInDim && kind(op) != OpKind::kReshape) {
      return std::nullopt;
    }
    found.behind.push_back(op);
  }
  return std::nullopt;
}

// Replaces max(max of x, max of y) by one reduction of both joined, and likewise for sums. Returns null for anything
// else.
mlir::Value Joiner::join_reductions(mlir::Operation* op) {
  if (kind(op) != OpKind::kAdd && kind(op) != OpKind::kMaximum) {
    return {};
  }
  const auto x = reduced(op->getOperand(0));
  const auto y = reduced(op->getOperand(1));
  if (!x || !y || x->reduce == y->reduce || x->behind.size() != y->behind.size()) {
    return {};
  }
  const auto how_x = reduction(x->reduce);
  const auto how_y = reduction(y->reduce);
  const Reducer wanted = kind(op) == OpKind::kAdd ? Reducer::kAdd : Reducer::kMaximum;
  if (!how_x || !how_y || how_x->reducer != wanted || how_y->reducer != wanted || how_x->inputs.size() != 1 ||
      how_y->inputs.size() != 1 || how_x->dims.size() != 1 || how_x->dims != how_y->dims ||
      !same_(how_x->inits[0], how_y->inits[0])) {
    return {};
  }
  const int64_t dim = how_x->dims[0];
  const auto neutral = splat(how_x->inits[0]);
  const bool is_neutral = wanted == Reducer::kMaximum || (neutral && *neutral == 0);  // a sum must not count it twice
  if (!is_neutral || with_size(how_x->inputs[0], dim, 1) != with_size(how_y->inputs[0], dim, 1)) {
    return {};
  }
  for (size_t i = 0; i < x->behind.size(); ++i) {
    if (!have_equal_attributes(x->behind[i], y->behind[i]) ||
        x->behind[i]->getResult(0).getType() != y->behind[i]->getResult(0).getType()) {
      return {};
    }
  }
  mlir::Value value = builder_.copy(x->reduce, {join(how_x->inputs[0], how_y->inputs[0], dim), how_x->inits[0]});
  for (mlir::Operation* behind : x->behind) {
    value = builder_.like(behind, value, behind->getResult(0).getType());
  }
  return value;
}

mlir::Value Joiner::with_joined_scores(mlir::Value value) {
  mlir::Operation* op = value.getDefiningOp();
  if (op == nullptr || is_limited() || op->getNumResults() != 1 || op->getNumOperands() == 0 || is_product(op) ||
      !is_removable(op)) {
    return value;
  }
  if (const auto known = rebuilt_.find(value); known != rebuilt_.end()) {
    return known->second;
  }
  mlir::Value made;
  if (kind(op) == OpKind::kConcatenate && op->getNumOperands() == 2) {
    made = join(op->getOperand(0), op->getOperand(1), *concat_dim(op));
  } else {
    made = join_reductions(op);
  }
  if (!made) {
    llvm::SmallVector<mlir::Value> operands;
    bool is_changed = false;
    for (const mlir::Value operand : op->getOperands()) {
      operands.push_back(with_joined_scores(operand));
      is_changed = is_changed || operands.back() != operand;
    }
    made = is_changed ? builder_.copy(op, operands) : value;
  }
  rebuilt_[value] = made;
  return made;
}

// Whether an operation becomes unused when `unread` does.
bool dies_with(mlir::Operation* op, mlir::Operation* unread, llvm::DenseMap<mlir::Operation*, bool>& known) {
  if (op == unread) {
    return true;
  }
  constexpr size_t kMost = 1000;
  const auto [found, is_new] = known.try_emplace(op, false);
  if (!is_new || known.size() > kMost) {
    return found->second;
  }
  const bool dies = is_removable(op) &&
                    llvm::all_of(op->getUsers(), [&](mlir::Operation* user) { return dies_with(user, unread, known); });
  known[op] = dies;
  return dies;
}

// `is_read_elsewhere`: whether the scores of the parts have other users than the two products of values.
std::optional<Rearrangement> join(mlir::Operation* product, bool& is_read_elsewhere) {
  mlir::Operation* op = product;
  while (op->hasOneUse() && (kind(op) != OpKind::kAdd)) {
    mlir::Operation* user = *op->user_begin();
    const bool follows = kind(user) == OpKind::kTranspose || kind(user) == OpKind::kReshape ||
                         kind(user) == OpKind::kDivide || kind(user) == OpKind::kAdd;
    if (!follows || user->getBlock() != product->getBlock()) {
      return std::nullopt;
    }
    op = user;
  }
  if (kind(op) != OpKind::kAdd || !static_tensor(op->getResult(0))) {
    return std::nullopt;
  }
  // The division by the row sum, which sums both parts, may come after the addition.
  std::vector<mlir::Operation*> behind;
  for (mlir::Operation* last = op; last->hasOneUse() && behind.empty();) {
    mlir::Operation* const user = *last->user_begin();
    const bool moves = kind(user) == OpKind::kTranspose || kind(user) == OpKind::kReshape;
    const bool divides = kind(user) == OpKind::kDivide && user->getOperand(0) == last->getResult(0);
    if ((!moves && !divides) || user->getBlock() != product->getBlock() || !static_tensor(user->getResult(0))) {
      break;
    }
    last = user;
    for (mlir::Operation* each = user; divides && each != op; each = each->getOperand(0).getDefiningOp()) {
      behind.insert(behind.begin(), each);
    }
  }
  mlir::Operation* const last = behind.empty() ? op : behind.back();
  Rearrangement found;
  Joiner joiner(last, found.added);
  mlir::Value result = joiner.add(op->getOperand(0), op->getOperand(1));
  found.product = joiner.product();
  if (!result) {
    take_back(found);
    return std::nullopt;
  }
  for (mlir::Operation* each : behind) {
    result = joiner.behind(each, result);
  }
  replace(found, last->getResult(0), result);
  // Scores with other users are computed anyway, so that joining them would save nothing.
  llvm::DenseMap<mlir::Operation*, bool> known;
  const auto dies = [&](mlir::Operation* scores) { return dies_with(scores, last, known); };
  is_read_elsewhere = !llvm::all_of(joiner.joined_products(), dies);
  if (joiner.joined_products().empty() || is_read_elsewhere) {
    take_back(found);
    return std::nullopt;
  }
  return found;
}

}  // namespace

std::optional<Rearrangement> join_parts_of_keys(mlir::Operation* product) {
  bool is_read_elsewhere = false;
  return join(product, is_read_elsewhere);
}

bool has_parts_of_keys_read_elsewhere(mlir::Operation* product) {
  bool is_read_elsewhere = false;
  if (const auto joined = join(product, is_read_elsewhere)) {
    take_back(*joined);
  }
  return is_read_elsewhere;
}

}  // namespace flashlift::stablehlo
