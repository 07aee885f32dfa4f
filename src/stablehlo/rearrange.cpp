#include "stablehlo/rearrange.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "llvm/ADT/DenseMap.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/IRMapping.h"
#include "stablehlo/lift/lift.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/lift/same_value.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"

namespace flashlift::stablehlo {
namespace {

mlir::RankedTensorType with_size(mlir::Value value, int64_t dim, int64_t size) {
  auto type = static_tensor(value);
  llvm::SmallVector<int64_t> dims(type.getShape());
  dims[static_cast<size_t>(dim)] = size;
  return type.clone(dims);
}

int64_t size_of(mlir::Value value, int64_t dim) { return shape(value)[static_cast<size_t>(dim)]; }

bool have_equal_attributes(mlir::Operation* x, mlir::Operation* y) {
  return x->getName() == y->getName() && x->getPropertiesAsAttribute() == y->getPropertiesAsAttribute();
}

// Makes operations in front of another one, and remembers them.
class Builder {
 public:
  Builder(mlir::Operation* before, std::vector<mlir::Operation*>& added) : builder_(before), added_(added) {}

  // Like another operation, of other operands and another type.
  mlir::Value like(mlir::Operation* op, mlir::ValueRange operands, mlir::Type type) {
    mlir::OperationState state(op->getLoc(), op->getName().getStringRef());
    state.addOperands(operands);
    state.addTypes(type);
    state.propertiesAttr = op->getPropertiesAsAttribute();
    mlir::Operation* made = builder_.create(state);
    made->setDiscardableAttrs(op->getDiscardableAttrDictionary());
    return note(made);
  }

  // The same with regions.
  mlir::Value copy(mlir::Operation* op, mlir::ValueRange operands) {
    mlir::Operation* made = builder_.clone(*op);
    made->setOperands(operands);
    return note(made);
  }

  mlir::Value concatenate(mlir::Location location, mlir::Value x, mlir::Value y, int64_t dim) {
    const mlir::NamedAttribute dimension(builder_.getStringAttr("dimension"), builder_.getI64IntegerAttr(dim));
    return note(build(builder_, location, "stablehlo.concatenate", {x, y},
                      mlir::TypeRange(with_size(x, dim, size_of(x, dim) + size_of(y, dim))), dimension));
  }

  mlir::Value broadcast(mlir::Location location, mlir::Value value, mlir::RankedTensorType type,
                        llvm::ArrayRef<int64_t> dims) {
    const mlir::NamedAttribute to(builder_.getStringAttr("broadcast_dimensions"), builder_.getDenseI64ArrayAttr(dims));
    return note(build(builder_, location, "stablehlo.broadcast_in_dim", value, mlir::TypeRange(type), to));
  }

  mlir::Value constant(mlir::Location location, mlir::DenseElementsAttr elements) {
    const mlir::NamedAttribute number(builder_.getStringAttr("value"), elements);
    return note(build(builder_, location, "stablehlo.constant", {}, mlir::TypeRange(elements.getType()), number));
  }

  mlir::Value multiply(mlir::Location location, mlir::Value x, mlir::Value y) {
    return note(build(builder_, location, "stablehlo.multiply", {x, y}, mlir::TypeRange(x.getType())));
  }

  mlir::Value reshape(mlir::Location location, mlir::Value value, llvm::ArrayRef<int64_t> dims) {
    const mlir::Value made = stablehlo::reshape(builder_, location, value, dims);
    return made == value ? made : note(made.getDefiningOp());
  }

  mlir::Value convert(mlir::Location location, mlir::Value value, mlir::Type element_type) {
    const mlir::Value made = stablehlo::convert(builder_, location, value, element_type);
    return made == value ? made : note(made.getDefiningOp());
  }

 private:
  mlir::Value note(mlir::Operation* op) {
    added_.push_back(op);
    return op->getResult(0);
  }

  mlir::OpBuilder builder_;
  std::vector<mlir::Operation*>& added_;
};

// Two values side by side, with the products that both are made from joined.
class Joiner {
 public:
  Joiner(mlir::Operation* before, std::vector<mlir::Operation*>& added) : builder_(before, added) {}

  // x + y as one product's result. Null if it is none.
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

  // The value, computed from joined scores where it is computed from both parts of them.
  mlir::Value with_joined_scores(mlir::Value value);

  // An operation behind the sum of two products, of joined ones.
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
  mlir::Value join_select(mlir::Operation* select, unsigned masked_at, mlir::Value x, mlir::Value y, int64_t dim);
  mlir::Value join_reductions(mlir::Operation* op);
  bool is_limited() { return --left_ < 0; }

  Builder builder_;
  SameValues same_;
  std::map<std::tuple<const void*, const void*, int64_t>, mlir::Value> joined_;
  llvm::DenseMap<mlir::Value, mlir::Value> rebuilt_;
  mlir::Operation* product_ = nullptr;          // of joined probabilities and values
  std::set<mlir::Operation*> joined_products_;  // those of scores, whose results stand side by side in another's
  int left_ = 400;                              // operations to be looked at
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

// What a slice along one dimension takes, from which value.
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

// Which operand of a select is one number, if one is: with it, the select masks the other.
std::optional<unsigned> masked_operand(mlir::Operation* op) {
  if (kind(op) != OpKind::kSelect) {
    return std::nullopt;
  }
  return splat(op->getOperand(2)) ? std::optional(2U) : splat(op->getOperand(1)) ? std::optional(1U) : std::nullopt;
}

mlir::Value Joiner::join_uncached(mlir::Value x, mlir::Value y, int64_t dim) {
  mlir::Operation* const of_x = x.getDefiningOp();
  mlir::Operation* const of_y = y.getDefiningOp();
  const mlir::Location location = x.getLoc();
  const int64_t size = size_of(x, dim) + size_of(y, dim);
  const auto side_by_side = [&] { return builder_.concatenate(location, x, y, dim); };
  const auto are_static = [](mlir::Operation* op) {
    return llvm::all_of(op->getOperands(), [](mlir::Value operand) { return static_tensor(operand) != nullptr; });
  };
  if (of_x == nullptr || of_y == nullptr || of_x->getBlock() != of_y->getBlock() || is_limited() || !are_static(of_x) ||
      !are_static(of_y)) {
    return side_by_side();
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
    return builder_.constant(location, elements_x.resizeSplat(with_size(x, dim, size)));
  }
  const auto masked_x = masked_operand(of_x);
  const auto masked_y = masked_operand(of_y);
  if (masked_x && masked_x != masked_y) {
    return join_select(of_x, *masked_x, x, y, dim);
  }
  if (masked_y && masked_x != masked_y) {
    return join_select(of_y, *masked_y, x, y, dim);
  }
  if (!have_equal_attributes(of_x, of_y) && kind(of_x) != OpKind::kBroadcastInDim) {
    return side_by_side();
  }
  switch (kind(of_x)) {
    case OpKind::kBroadcastInDim: {
      if (kind(of_y) != OpKind::kBroadcastInDim || broadcast_dims(of_x) != broadcast_dims(of_y)) {
        return side_by_side();
      }
      const mlir::Value a = of_x->getOperand(0);
      const mlir::Value b = of_y->getOperand(0);
      const auto dims = broadcast_dims(of_x);
      const auto* const at = std::find(dims.begin(), dims.end(), dim);
      const bool is_mapped =
          at != dims.end() && (size_of(a, at - dims.begin()) != 1 || size_of(b, at - dims.begin()) != 1);
      if (!is_mapped) {
        return a.getType() == b.getType() && same_(a, b)
                   ? builder_.broadcast(location, with_joined_scores(a), with_size(x, dim, size), dims)
                   : side_by_side();
      }
      const int64_t inner = at - dims.begin();
      if (size_of(a, inner) != size_of(x, dim) || size_of(b, inner) != size_of(y, dim) ||
          with_size(a, inner, 1) != with_size(b, inner, 1)) {
        return side_by_side();
      }
      return builder_.broadcast(location, join(a, b, inner), with_size(x, dim, size), dims);
    }
    case OpKind::kTranspose: {
      const int64_t inner = permutation(of_x)[static_cast<size_t>(dim)];
      return builder_.like(of_x, join(of_x->getOperand(0), of_y->getOperand(0), inner), with_size(x, dim, size));
    }
    case OpKind::kDotGeneral: {
      if (!is_product(of_x) || !is_product(of_y)) {
        return side_by_side();
      }
      // Result dimensions: batch, then the free ones of the left operand, then those of the right one.
      const OperandDims lhs = operand_dims(of_x, 0);
      const OperandDims rhs = operand_dims(of_x, 1);
      const auto batch = static_cast<int64_t>(lhs.batch.size());
      const auto lhs_end = batch + static_cast<int64_t>(lhs.free.size());
      if (dim < batch) {
        return side_by_side();
      }
      const unsigned side = dim < lhs_end ? 0 : 1;
      const int64_t inner =
          side == 0 ? lhs.free[static_cast<size_t>(dim - batch)] : rhs.free[static_cast<size_t>(dim - lhs_end)];
      if (!same_(of_x->getOperand(1 - side), of_y->getOperand(1 - side)) ||
          with_size(of_x->getOperand(side), inner, 1) != with_size(of_y->getOperand(side), inner, 1)) {
        return side_by_side();
      }
      joined_products_.insert({of_x, of_y});
      mlir::Value operands[2];
      operands[side] = join(of_x->getOperand(side), of_y->getOperand(side), inner);
      operands[1 - side] = of_x->getOperand(1 - side);
      return builder_.like(of_x, operands, with_size(x, dim, size));
    }
    default: {
      if (!is_elementwise(of_x) || of_x->getNumOperands() != of_y->getNumOperands()) {
        return side_by_side();
      }
      llvm::SmallVector<mlir::Value> operands;
      for (const auto [a, b] : llvm::zip_equal(of_x->getOperands(), of_y->getOperands())) {
        if (shape(a) != shape(x) || shape(b) != shape(y) ||
            static_tensor(a).getElementType() != static_tensor(b).getElementType()) {
          return side_by_side();
        }
        operands.push_back(join(a, b, dim));
      }
      return builder_.like(of_x, operands, with_size(x, dim, size));
    }
  }
}

// One part alone is masked, or by a select the other way round: the other one is as by a mask that keeps all.
// `masked_at`: which operand of the select is the number that masks.
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

// Of a reduction over the keys, in whatever shape its result was brought.
struct Reduced {
  mlir::Operation* reduce = nullptr;
  std::vector<mlir::Operation*> behind;  // broadcasts and reshapes, nearest last
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

// max(max of x, max of y), or the same of sums: of both side by side. Null if it is something else.
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
  const bool is_neutral = wanted == Reducer::kMaximum || (neutral && *neutral == 0);  // counted once, or twice
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

void replace(Rearrangement& rearrangement, mlir::Value original, mlir::Value result) {
  original.replaceAllUsesWith(result);
  rearrangement.replaced.push_back({original, result});
}

// A value that is the same along all dimensions but these: what it is broadcast from, and which of its dimensions the
// source's dimensions are. Those of size 1 are none.
struct Broadcast {
  mlir::Value source;
  std::vector<int64_t> dims;  // -1 for size 1
};
Broadcast source_of(mlir::Value value) {
  Broadcast found{.source = value, .dims = {}};
  for (size_t d = 0; d < shape(value).size(); ++d) {
    found.dims.push_back(static_cast<int64_t>(d));
  }
  while (mlir::Operation* op = found.source.getDefiningOp()) {
    if (kind(op) != OpKind::kBroadcastInDim) {
      break;
    }
    std::vector<int64_t> dims;
    for (const auto [d, to] : llvm::enumerate(broadcast_dims(op))) {
      dims.push_back(size_of(op->getOperand(0), static_cast<int64_t>(d)) == 1 ? -1
                                                                              : found.dims[static_cast<size_t>(to)]);
    }
    found = {.source = op->getOperand(0), .dims = std::move(dims)};
  }
  for (size_t d = 0; d < found.dims.size(); ++d) {
    found.dims[d] = shape(found.source)[d] == 1 ? -1 : found.dims[d];
  }
  return found;
}

}  // namespace

namespace {

// Whether nothing reads an operation's results once nothing reads those of `unread`.
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

}  // namespace

std::optional<Rearrangement> join_parts_of_keys(mlir::Operation* product) {
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
  // The row sum that divides may stand behind the addition; it is of both parts, too.
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
  // Scores that something else reads are computed by the module anyway: then nothing would be saved.
  llvm::DenseMap<mlir::Operation*, bool> known;
  const auto dies = [&](mlir::Operation* scores) { return dies_with(scores, last, known); };
  if (joiner.joined_products().empty() || !llvm::all_of(joiner.joined_products(), dies)) {
    take_back(found);
    return std::nullopt;
  }
  return found;
}

namespace {

// What makes an operand of a product, and what converts that to the other operand's type, if anything does.
struct Factor {
  mlir::Operation* op;
  mlir::Operation* rounds;
};

Factor factor_at(mlir::Operation* product, unsigned side) {
  mlir::Operation* const op = product->getOperand(side).getDefiningOp();
  if (op == nullptr || kind(op) != OpKind::kConvert) {
    return {.op = op, .rounds = nullptr};
  }
  return {.op = op->getOperand(0).getDefiningOp(), .rounds = op};
}

// Numbers that may be weighted instead of probabilities: in f16 they may overflow where those do not.
bool may_be_weighted(mlir::Value value) {
  const auto type = dtype(value.getType());
  return type == DType::kF32 || type == DType::kBF16;
}

}  // namespace

std::optional<Rearrangement> move_weights_to_values(mlir::Operation* product) {
  if (!is_product(product) || kind(product) != OpKind::kDotGeneral) {
    return std::nullopt;
  }
  for (unsigned side = 0; side < 2; ++side) {
    const auto [weighted, rounds] = factor_at(product, side);
    if (weighted == nullptr || kind(weighted) != OpKind::kMultiply || weighted->getBlock() != product->getBlock()) {
      continue;
    }
    const mlir::Value values = product->getOperand(1 - side);
    const OperandDims own = operand_dims(product, side);
    const OperandDims others = operand_dims(product, 1 - side);
    if (!may_be_weighted(values) || !may_be_weighted(weighted->getResult(0))) {
      continue;
    }
    for (unsigned which = 0; which < 2; ++which) {
      const mlir::Value weights = weighted->getOperand(which);
      const Broadcast broadcast = source_of(weights);
      llvm::SmallVector<int64_t> sizes;
      llvm::SmallVector<int64_t> dims;
      bool is_of_keys = false;
      bool fits = true;
      for (const auto [d, dim] : llvm::enumerate(broadcast.dims)) {
        if (dim < 0) {
          continue;
        }
        const auto batch = std::find(own.batch.begin(), own.batch.end(), dim);
        const auto key = std::find(own.contract.begin(), own.contract.end(), dim);
        is_of_keys = is_of_keys || key != own.contract.end();
        fits = fits && (batch != own.batch.end() || key != own.contract.end());
        if (fits) {
          sizes.push_back(shape(broadcast.source)[d]);
          dims.push_back(batch != own.batch.end() ? others.batch[static_cast<size_t>(batch - own.batch.begin())]
                                                  : others.contract[static_cast<size_t>(key - own.contract.begin())]);
        }
      }
      if (!fits || !is_of_keys || is_near_softmax(broadcast.source)) {  // the values must not need the probabilities
        continue;
      }
      Rearrangement found;
      Builder builder(product, found.added);
      const mlir::Location location = product->getLoc();
      const mlir::Type element = static_tensor(weighted->getResult(0)).getElementType();
      const mlir::Value wide = builder.convert(location, values, element);
      const mlir::Value source = builder.reshape(location, broadcast.source, sizes);
      const mlir::Value scales =
          builder.broadcast(location, source, mlir::cast<mlir::RankedTensorType>(wide.getType()), dims);
      mlir::Value operands[2];
      operands[1 - side] =
          builder.convert(location, builder.multiply(location, wide, scales), static_tensor(values).getElementType());
      operands[side] = weighted->getOperand(1 - which);
      if (rounds) {
        operands[side] = builder.like(rounds, operands[side], rounds->getResult(0).getType());
      }
      const mlir::Value result = builder.like(product, operands, product->getResult(0).getType());
      found.product = result.getDefiningOp();
      replace(found, product->getResult(0), result);
      return found;
    }
  }
  return std::nullopt;
}

namespace {

// A multiplication by a number for each row, or a division, or a condition on rows under which alone numbers stay.
struct RowWeights {
  mlir::Operation* op = nullptr;  // multiply, divide or select
  unsigned of = 0;                // which operand is weighted
  Broadcast weights;
};

std::optional<RowWeights> row_weights(mlir::Operation* op, unsigned of) {
  if (op == nullptr || op->getNumResults() != 1 || !static_tensor(op->getResult(0))) {
    return std::nullopt;
  }
  if ((kind(op) == OpKind::kMultiply && of < 2) || (kind(op) == OpKind::kDivide && of == 0)) {
    return RowWeights{.op = op, .of = of, .weights = source_of(op->getOperand(1 - of))};
  }
  if (kind(op) == OpKind::kSelect && of > 0 && splat(op->getOperand(3 - of)) == 0 &&
      !shape(op->getOperand(0)).empty()) {
    return RowWeights{.op = op, .of = of, .weights = source_of(op->getOperand(0))};
  }
  return std::nullopt;
}

// Where the dimensions of one tensor stand in another, in the same order: `map` gives the other's, or -1. Those of size
// 1 have none.
std::optional<Broadcast> moved(const Broadcast& weights, llvm::function_ref<int64_t(int64_t)> map) {
  Broadcast result{.source = weights.source, .dims = {}};
  int64_t last = -1;
  for (const int64_t dim : weights.dims) {
    result.dims.push_back(dim < 0 ? -1 : map(dim));
    if (dim >= 0 && result.dims.back() <= last) {
      return std::nullopt;
    }
    last = std::max(last, result.dims.back());
  }
  return result;
}

bool have_equal_numbers(mlir::Value x, mlir::Value y) { return x == y || (splat(x) && splat(x) == splat(y)); }

int64_t position(const std::vector<int64_t>& list, int64_t wanted) {
  const auto at = std::find(list.begin(), list.end(), wanted);
  return at == list.end() ? -1 : at - list.begin();
}

// Weighs values. The output's gradient, which two products read, is weighted once.
class Weigher {
 public:
  explicit Weigher(Rearrangement& found) : found_(found) {}

  // The value, weighted as by `like`, in its own type, in front of an operation.
  mlir::Value operator()(mlir::Operation* before, mlir::Value value, const RowWeights& like, const Broadcast& weights) {
    for (const Weighted& known : known_) {
      mlir::Operation* const made = mlir::Value(known.result).getDefiningOp();
      if (known.value == value && have_equal_numbers(known.source, weights.source) && known.dims == weights.dims &&
          made->isBeforeInBlock(before)) {
        return known.result;
      }
    }
    Builder builder(before, found_.added);
    known_.push_back({value, weights.source, weights.dims, weigh(builder, value, like, weights)});
    return known_.back().result;
  }

 private:
  struct Weighted {
    mlir::Value value, source;
    std::vector<int64_t> dims;
    mlir::Value result;
  };

  static mlir::Value weigh(Builder& builder, mlir::Value value, const RowWeights& like, const Broadcast& weights);

  Rearrangement& found_;
  std::vector<Weighted> known_;
};

mlir::Value Weigher::weigh(Builder& builder, mlir::Value value, const RowWeights& like, const Broadcast& weights) {
  const mlir::Location location = like.op->getLoc();
  llvm::SmallVector<int64_t> sizes;
  llvm::SmallVector<int64_t> dims;
  for (const auto [d, dim] : llvm::enumerate(weights.dims)) {
    if (dim >= 0) {
      sizes.push_back(shape(weights.source)[d]);
      dims.push_back(dim);
    }
  }
  const mlir::Value source = builder.reshape(location, weights.source, sizes);
  auto type = static_tensor(value);
  if (kind(like.op) == OpKind::kSelect) {
    const mlir::Value condition =
        builder.broadcast(location, source, type.clone(static_tensor(source).getElementType()), dims);
    auto element = mlir::cast<mlir::FloatType>(type.getElementType());
    const mlir::Value zero =
        builder.constant(location, mlir::DenseElementsAttr::get(type, mlir::FloatAttr::get(element, 0.0).getValue()));
    return like.of == 1 ? builder.like(like.op, {condition, value, zero}, type)
                        : builder.like(like.op, {condition, zero, value}, type);
  }
  const mlir::Type element = static_tensor(source).getElementType();
  const mlir::Value wide = builder.convert(location, value, element);
  const mlir::Value spread =
      builder.broadcast(location, source, mlir::cast<mlir::RankedTensorType>(wide.getType()), dims);
  const mlir::Value made = kind(like.op) == OpKind::kDivide ? builder.like(like.op, {wide, spread}, wide.getType())
                                                            : builder.multiply(location, wide, spread);
  return builder.convert(location, made, type.getElementType());
}

// The weighted operand's dimension d among those of the product's result, or -1.
int64_t in_result(mlir::Operation* product, unsigned side, int64_t d) {
  const OperandDims own = operand_dims(product, side);
  const OperandDims left = operand_dims(product, 0);
  if (const int64_t batch = position(own.batch, d); batch >= 0) {
    return batch;
  }
  const int64_t free = position(own.free, d);
  return free < 0 ? -1 : static_cast<int64_t>(own.batch.size() + (side == 0 ? 0 : left.free.size())) + free;
}

// The weighted operand's dimension d among those of the other operand, or -1.
int64_t in_other(mlir::Operation* product, unsigned side, int64_t d) {
  const OperandDims own = operand_dims(product, side);
  const OperandDims other = operand_dims(product, 1 - side);
  const int64_t batch = position(own.batch, d);
  const int64_t summed = position(own.contract, d);
  return batch >= 0    ? other.batch[static_cast<size_t>(batch)]
         : summed >= 0 ? other.contract[static_cast<size_t>(summed)]
                       : -1;
}

// A product of weighted probabilities and the output's gradient, which is summed over rows: weighs the latter.
// `probabilities`: what takes their place.
void weigh_gradient_of_values(mlir::Operation* product, unsigned side, mlir::Value probabilities, const RowWeights& row,
                              Weigher& weigh, Rearrangement& found) {
  const auto weights = moved(row.weights, [&](int64_t d) { return in_other(product, side, d); });
  if (!weights || !may_be_weighted(product->getOperand(1 - side))) {
    return;
  }
  Builder builder(product, found.added);
  mlir::Value operands[2];
  operands[side] = probabilities;
  operands[1 - side] = weigh(product, product->getOperand(1 - side), row, *weights);
  replace(found, product->getResult(0), builder.like(product, operands, product->getResult(0).getType()));
}

// The gradient by weighted probabilities, weighted in turn: weighs the output's gradient in their product instead.
// `carrier`: the product, or its result in another type.
void weigh_gradient_of_probabilities(mlir::Operation* product, mlir::Operation* carrier, unsigned side,
                                     const RowWeights& row, Weigher& weigh, Rearrangement& found) {
  const auto in_operand = [&](int64_t of_result) -> int64_t {
    for (size_t dim = 0; dim < shape(product->getOperand(side)).size(); ++dim) {
      if (in_result(product, side, static_cast<int64_t>(dim)) == of_result) {
        return static_cast<int64_t>(dim);
      }
    }
    return -1;
  };
  for (mlir::OpOperand& use : llvm::make_early_inc_range(carrier->getResult(0).getUses())) {
    const auto weighted = row_weights(use.getOwner(), use.getOperandNumber());
    if (!weighted || !have_equal_numbers(weighted->weights.source, row.weights.source) ||
        kind(weighted->op) != kind(row.op) || (kind(row.op) == OpKind::kSelect && weighted->of != row.of) ||
        weighted->op->getBlock() != product->getBlock()) {
      continue;
    }
    const auto weights = moved(weighted->weights, in_operand);
    if (!weights || !may_be_weighted(product->getOperand(side))) {
      continue;
    }
    Builder builder(weighted->op, found.added);
    mlir::Value operands[2];
    operands[side] = weigh(weighted->op, product->getOperand(side), *weighted, *weights);
    operands[1 - side] = product->getOperand(1 - side);
    mlir::Value made = builder.like(product, operands, product->getResult(0).getType());
    if (carrier != product) {
      made = builder.like(carrier, made, carrier->getResult(0).getType());
    }
    replace(found, weighted->op->getResult(0), made);
  }
}

// The products that a value is computed from, with no other one between. Nothing where that takes too long to find out.
std::optional<std::set<mlir::Operation*>> products_behind(mlir::Value value) {
  constexpr size_t kMost = 2000;
  std::set<mlir::Operation*> seen;
  std::set<mlir::Operation*> products;
  std::vector<mlir::Operation*> stack{value.getDefiningOp()};
  while (!stack.empty()) {
    mlir::Operation* op = stack.back();
    stack.pop_back();
    if (op == nullptr || !seen.insert(op).second) {
      continue;
    }
    if (seen.size() > kMost) {
      return std::nullopt;
    }
    if (is_product(op) && !side_summed_by_product(op)) {
      products.insert(op);
      continue;
    }
    for (const mlir::Value operand : op->getOperands()) {
      stack.push_back(operand.getDefiningOp());
    }
  }
  return products;
}

// Whether weights are computed from the scores that the probabilities are of: then they are part of the softmax.
bool may_be_of_scores(mlir::Value weights, mlir::Value probabilities) {
  const auto of_weights = products_behind(weights);
  const auto of_probabilities = products_behind(probabilities);
  return !of_weights || !of_probabilities ||
         llvm::any_of(*of_weights, [&](mlir::Operation* product) { return of_probabilities->contains(product); });
}

bool is_dot_general_in(mlir::Block* block, mlir::Operation* op) {
  return is_product(op) && kind(op) == OpKind::kDotGeneral && op->getBlock() == block;
}

// The same in the backward pass, if there is one. `probabilities` stand without weights in two types, which may be one.
void weigh_output_gradient(mlir::Operation* product, mlir::Value values, const RowWeights& row,
                           llvm::ArrayRef<std::pair<mlir::Value, mlir::Value>> probabilities, Weigher& weigh,
                           Rearrangement& found) {
  for (const auto& [weighted, unweighted] : probabilities) {
    for (mlir::Operation* user : llvm::make_early_inc_range(mlir::Value(weighted).getUsers())) {
      if (user != product && is_dot_general_in(product->getBlock(), user) && product->isBeforeInBlock(user)) {
        weigh_gradient_of_values(user, user->getOperand(0) == weighted ? 0 : 1, unweighted, row, weigh, found);
      }
    }
  }
  for (mlir::Operation* user : llvm::make_early_inc_range(values.getUsers())) {
    if (user == product || user == found.product || !is_dot_general_in(product->getBlock(), user)) {
      continue;
    }
    const unsigned side = user->getOperand(0) == values ? 1 : 0;
    weigh_gradient_of_probabilities(user, user, side, row, weigh, found);
    for (mlir::Operation* carrier : llvm::make_early_inc_range(user->getResult(0).getUsers())) {
      if (kind(carrier) == OpKind::kConvert) {
        weigh_gradient_of_probabilities(user, carrier, side, row, weigh, found);
      }
    }
  }
}

}  // namespace

std::optional<Rearrangement> move_weights_to_output(mlir::Operation* product) {
  if (!is_product(product) || kind(product) != OpKind::kDotGeneral) {
    return std::nullopt;
  }
  for (unsigned side = 0; side < 2; ++side) {
    const auto [weighted, rounds] = factor_at(product, side);
    for (unsigned of = 0; of < 3; ++of) {
      const auto row = row_weights(weighted, of);
      const auto weights =
          row ? moved(row->weights, [&](int64_t d) { return in_result(product, side, d); }) : std::nullopt;
      // What is computed from the scores is a part of the softmax, such as 1 / sum, or a guard of it.
      if (!weights || !may_be_weighted(product->getResult(0)) || !may_be_weighted(weighted->getResult(0)) ||
          weighted->getBlock() != product->getBlock() || may_be_of_scores(weights->source, weighted->getOperand(of))) {
        continue;
      }
      Rearrangement found;
      Builder builder(product, found.added);
      mlir::Value operands[2];
      operands[side] = weighted->getOperand(of);
      if (rounds) {
        operands[side] = builder.like(rounds, operands[side], rounds->getResult(0).getType());
      }
      operands[1 - side] = product->getOperand(1 - side);
      const mlir::Value unweighted = builder.like(product, operands, product->getResult(0).getType());
      found.product = unweighted.getDefiningOp();
      Weigher weigh(found);
      replace(found, product->getResult(0), weigh(product, unweighted, *row, *weights));
      weigh_output_gradient(
          product, product->getOperand(1 - side), *row,
          {{weighted->getResult(0), weighted->getOperand(of)}, {product->getOperand(side), operands[side]}}, weigh,
          found);
      return found;
    }
  }
  return std::nullopt;
}

void take_back(const Rearrangement& rearrangement) {
  for (const auto& [original, result] : rearrangement.replaced) {
    mlir::Value(result).replaceAllUsesWith(original);
  }
  for (size_t i = rearrangement.added.size(); i-- > 0;) {
    rearrangement.added[i]->erase();
  }
}

}  // namespace flashlift::stablehlo
