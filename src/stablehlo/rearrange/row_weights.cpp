#include <algorithm>
#include <cmath>
#include <set>

#include "stablehlo/lift/products.h"
#include "stablehlo/lift/same_value.h"
#include "stablehlo/lift/walk.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"
#include "stablehlo/rearrange/rearrange.h"
#include "stablehlo/rearrange/weights.h"

namespace flashlift::stablehlo {
namespace {

// A multiplication or division by one number for each row, or a select that sets rows to 0 unless a condition holds.
struct RowWeights {
  mlir::Operation* op = nullptr;  // multiply, divide or select
  unsigned of = 0;                // the operand that is weighted
  Broadcast weights;
};

// Whether the operation is a select that gives its operand `of`, or 0.
bool masks(mlir::Operation* op, unsigned of) {
  return kind(op) == OpKind::kSelect && splat(op->getOperand(3 - of)) == 0;
}

std::optional<RowWeights> row_weights(mlir::Operation* op, unsigned of) {
  if (op == nullptr || op->getNumResults() != 1 || !static_tensor(op->getResult(0))) {
    return std::nullopt;
  }
  if ((kind(op) == OpKind::kMultiply && of < 2) || (kind(op) == OpKind::kDivide && of == 0)) {
    return RowWeights{.op = op, .of = of, .weights = source_of(op->getOperand(1 - of))};
  }
  if (of > 0 && masks(op, of) && !shape(op->getOperand(0)).empty()) {
    return RowWeights{.op = op, .of = of, .weights = source_of(op->getOperand(0))};
  }
  return std::nullopt;
}

// Which operand a select keeps where it does not give 0; nothing if it is no such select.
std::optional<unsigned> masked_by(mlir::Operation* op) {
  for (const unsigned of : {1U, 2U}) {
    if (op != nullptr && masks(op, of)) {
      return of;
    }
  }
  return std::nullopt;
}

// The same operation on another value of the same type, with the same mask if it is a select.
mlir::Value like(Builder& builder, mlir::Operation* op, mlir::Value value) {
  llvm::SmallVector<mlir::Value> operands(op->getOperands());
  operands[masked_by(op).value_or(0)] = value;
  return builder.like(op, operands, op->getResult(0).getType());
}

// The broadcast to other dimensions in the same order: `map` gives the other dimension, or -1 for one that is absent.
// Dimensions of size 1 have none.
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

bool have_equal_numbers(mlir::Value x, mlir::Value y) {
  return (splat(x) && splat(x) == splat(y)) || SameValues()(x, y);
}

int64_t position(const std::vector<int64_t>& list, int64_t wanted) {
  const auto at = std::find(list.begin(), list.end(), wanted);
  return at == list.end() ? -1 : at - list.begin();
}

// Applies weights to values. The output's gradient, which two products read, is weighted only once.
class Weigher {
 public:
  explicit Weigher(Rearrangement& found) : found_(found) {}

  // Inserts an operation like `like` before `before`, which weights the value in its own type.
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

// The position of the weighted operand's dimension d in the product's result, or -1.
int64_t in_result(mlir::Operation* product, unsigned side, int64_t d) {
  const OperandDims own = operand_dims(product, side);
  const OperandDims left = operand_dims(product, 0);
  if (const int64_t batch = position(own.batch, d); batch >= 0) {
    return batch;
  }
  const int64_t free = position(own.free, d);
  return free < 0 ? -1 : static_cast<int64_t>(own.batch.size() + (side == 0 ? 0 : left.free.size())) + free;
}

// The position of the weighted operand's dimension d in the other operand, or -1.
int64_t in_other(mlir::Operation* product, unsigned side, int64_t d) {
  const OperandDims own = operand_dims(product, side);
  const OperandDims other = operand_dims(product, 1 - side);
  const int64_t batch = position(own.batch, d);
  const int64_t summed = position(own.contract, d);
  return batch >= 0    ? other.batch[static_cast<size_t>(batch)]
         : summed >= 0 ? other.contract[static_cast<size_t>(summed)]
                       : -1;
}

// For a product of weighted probabilities and the output's gradient, which sums over rows: weights the gradient
// instead. `probabilities` replace the weighted ones.
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

// For a gradient of weighted probabilities, which is weighted in turn: weights the output's gradient in their product
// instead. `carrier`: the product, or its converted result.
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
      made = like(builder, carrier, made);
    }
    replace(found, weighted->op->getResult(0), made);
  }
}

int64_t rank_of(mlir::Value value) { return static_cast<int64_t>(shape(value).size()); }

// Dimensions of the output, and those of its gradient that are the same: first the depth and what else is summed.
struct SummedOutput {
  std::vector<int64_t> of_output;
  std::vector<int64_t> of_gradient;
  size_t summed = 0;
};

// `product` is that of the probabilities, its operand `side`, and the values; `of_gradient` that of the output's
// gradient and the same values. A sum over the dimensions `over` of both scores' elementwise product is one over the
// depth instead of the keys. Nothing if it is no sum over the keys, or if a dimension has another meaning in the other
// product.
std::optional<SummedOutput> summed_output(mlir::Operation* product, unsigned side, mlir::Operation* of_gradient,
                                          unsigned gradient_side, llvm::ArrayRef<int64_t> over) {
  SummedOutput found;
  for (int64_t d = 0; d < rank_of(product->getOperand(1 - side)); ++d) {
    const int64_t of_scores = in_other(product, 1 - side, d);
    if (of_scores != in_result(of_gradient, 1 - gradient_side, d)) {
      return std::nullopt;
    }
    if (of_scores < 0) {
      found.of_output.push_back(in_result(product, 1 - side, d));
      found.of_gradient.push_back(in_other(of_gradient, 1 - gradient_side, d));
    }
  }
  std::vector<int64_t> in_gradient(shape(product->getOperand(side)).size(), -1);
  for (int64_t d = 0; d < rank_of(of_gradient->getOperand(gradient_side)); ++d) {
    if (const int64_t of_scores = in_result(of_gradient, gradient_side, d); of_scores >= 0) {
      in_gradient[static_cast<size_t>(of_scores)] = d;
    }
  }
  for (const bool is_summed : {true, false}) {
    for (const auto [d, other] : llvm::enumerate(in_gradient)) {
      const int64_t of_output = in_result(product, side, static_cast<int64_t>(d));
      const bool is_key = of_output < 0;
      if (is_key != (other < 0) || (is_key && !llvm::is_contained(over, static_cast<int64_t>(d)))) {
        return std::nullopt;
      }
      if (!is_key && llvm::is_contained(over, static_cast<int64_t>(d)) == is_summed) {
        found.of_output.push_back(of_output);
        found.of_gradient.push_back(other);
      }
    }
    found.summed = is_summed ? found.of_output.size() : found.summed;
  }
  return found;
}

// The value itself, or the one of 16 bits from which it was converted to f32.
mlir::Value before_widening(mlir::Value value) {
  mlir::Operation* const convert = defining(value, OpKind::kConvert);
  const bool widens = convert != nullptr && dtype(value.getType()) == DType::kF32 &&
                      (dtype(convert->getOperand(0).getType()) == DType::kBF16 ||
                       dtype(convert->getOperand(0).getType()) == DType::kF16);
  return widens ? convert->getOperand(0) : value;
}

// Where the gradient of weights sums probabilities times their gradient over the keys: sums the output times its own
// gradient over the values' depth instead, which is the same number. `carrier`: the product of the output's gradient
// and the values, or its converted result.
void sum_over_depth(mlir::Operation* product, unsigned side, mlir::Value probabilities, mlir::Operation* of_gradient,
                    unsigned gradient_side, mlir::Operation* carrier, Rearrangement& found) {
  std::vector<mlir::Operation*> users;
  for (mlir::OpOperand& use : carrier->getResult(0).getUses()) {
    mlir::Operation* const multiply = use.getOwner();
    if (kind(multiply) == OpKind::kMultiply && multiply->getBlock() == product->getBlock() &&
        product->isBeforeInBlock(multiply) &&
        SameValues()(before_widening(multiply->getOperand(1 - use.getOperandNumber())), probabilities)) {
      users.insert(users.end(), multiply->user_begin(), multiply->user_end());
    }
  }
  for (size_t i = 0; i < users.size(); ++i) {
    mlir::Operation* const sum = users[i];
    if (kind(sum) == OpKind::kConvert && dtype(sum->getResult(0).getType()) == DType::kF32) {
      users.insert(users.end(), sum->user_begin(), sum->user_end());
    }
    const auto how = kind(sum) == OpKind::kReduce ? reduction(sum) : std::nullopt;
    if (!how || how->reducer != Reducer::kAdd || how->inputs.size() != 1 || splat(how->inits[0]) != 0.0) {
      continue;
    }
    const auto dims = summed_output(product, side, of_gradient, gradient_side, how->dims);
    if (!dims) {
      continue;
    }
    Builder builder(sum, found.added);
    const mlir::Location location = sum->getLoc();
    const auto in_order = [&](mlir::Value value, const std::vector<int64_t>& order) {
      return builder.convert(location, builder.transpose(location, value, order),
                             mlir::Float32Type::get(sum->getContext()));
    };
    const mlir::Value terms = builder.multiply(location, in_order(product->getResult(0), dims->of_output),
                                               in_order(of_gradient->getOperand(gradient_side), dims->of_gradient));
    const auto summed = llvm::to_vector(llvm::seq<int64_t>(0, static_cast<int64_t>(dims->summed)));
    replace(found, sum->getResult(0),
            builder.convert(location, builder.sum(location, terms, summed),
                            static_tensor(sum->getResult(0)).getElementType()));
  }
}

// The nearest products that a value depends on. Nothing if the search for them is too long.
std::optional<std::set<mlir::Operation*>> products_behind(mlir::Value value) {
  constexpr size_t kMost = 2000;
  size_t visited = 0;
  std::set<mlir::Operation*> products;
  const bool is_too_long =
      any_operation({value.getDefiningOp()}, kMost + 1, [&](mlir::Operation* op, OperationStack& stack) {
        if (is_product(op) && !side_summed_by_product(op)) {
          products.insert(op);
        } else {
          push_definitions(op, stack);
        }
        return ++visited > kMost;
      });
  return is_too_long ? std::nullopt : std::optional(std::move(products));
}

// Whether weights depend on the scores of these probabilities: then they are part of the softmax.
bool may_be_of_scores(mlir::Value weights, mlir::Value probabilities) {
  const auto of_weights = products_behind(weights);
  const auto of_probabilities = products_behind(probabilities);
  return !of_weights || !of_probabilities ||
         llvm::any_of(*of_weights, [&](mlir::Operation* product) { return of_probabilities->contains(product); });
}

bool is_dot_general_in(mlir::Block* block, mlir::Operation* op) {
  return is_product(op) && kind(op) == OpKind::kDotGeneral && op->getBlock() == block;
}

// Does the same in the backward pass, if there is one. `probabilities` are without weights, in two types that may be
// the same. `mask`: the select behind the weights, or null.
void weigh_output_gradient(mlir::Operation* product, unsigned side, const RowWeights& row,
                           llvm::ArrayRef<std::pair<mlir::Value, mlir::Value>> probabilities, mlir::Operation* mask,
                           Weigher& weigh, Rearrangement& found) {
  for (const auto& [weighted, unweighted] : probabilities) {
    for (mlir::Operation* user : llvm::make_early_inc_range(mlir::Value(weighted).getUsers())) {
      if (user != product && is_dot_general_in(product->getBlock(), user) && product->isBeforeInBlock(user)) {
        weigh_gradient_of_values(user, user->getOperand(0) == weighted ? 0 : 1, unweighted, row, weigh, found);
      }
    }
  }
  const mlir::Value values = product->getOperand(1 - side);
  for (mlir::Operation* user : llvm::make_early_inc_range(values.getUsers())) {
    if (user == product || user == found.product || !is_dot_general_in(product->getBlock(), user)) {
      continue;
    }
    const unsigned of_gradient = user->getOperand(0) == values ? 1 : 0;
    std::vector<mlir::Operation*> carriers{user};
    llvm::copy_if(user->getResult(0).getUsers(), std::back_inserter(carriers), [&](mlir::Operation* carrier) {
      const auto of = masked_by(carrier);
      return kind(carrier) == OpKind::kConvert || (of && carrier->getOperand(*of) == user->getResult(0));
    });
    for (mlir::Operation* carrier : carriers) {
      weigh_gradient_of_probabilities(user, carrier, of_gradient, row, weigh, found);
      // The output sums masked probabilities.
      const bool has_same_mask = mask == nullptr ? !masked_by(carrier)
                                                 : masked_by(mask) == masked_by(carrier) &&
                                                       SameValues()(mask->getOperand(0), carrier->getOperand(0));
      if (kind(row.op) == OpKind::kMultiply && has_same_mask) {
        sum_over_depth(found.product, side, row.op->getOperand(row.of), user, of_gradient, carrier, found);
      }
    }
  }
}

// Whether weights may be moved behind a mask of probabilities. A row of which the mask keeps nothing is 0 in the
// module, also if its own weight is infinite, such as 1 / (number of keys).
bool may_move_behind_mask(const RowWeights& row) {
  return kind(row.op) == OpKind::kSelect || llvm::all_of(row.weights.dims, [](int64_t dim) { return dim < 0; });
}

// Whether 0 stays 0 if it is weighted.
bool keeps_zeros(const RowWeights& row) {
  const auto number = splat(row.weights.source);
  return kind(row.op) == OpKind::kSelect ||
         (number && std::isfinite(*number) && (kind(row.op) == OpKind::kMultiply || *number != 0));
}

// The weighted output, with 0 in the rows that are 0 before: an infinite weight, such as 1 / (number of all keys that a
// mask keeps), would make them NaN. The operand `side` of the product has the probabilities.
mlir::Value with_zero_rows(mlir::Operation* product, unsigned side, mlir::Value unweighted, mlir::Value weighted,
                           Builder& builder) {
  const mlir::Location location = product->getLoc();
  llvm::SmallVector<int64_t> depth;
  llvm::SmallVector<int64_t> rows;
  for (const int64_t d : operand_dims(product, 1 - side).free) {
    depth.push_back(in_result(product, 1 - side, d));
  }
  for (int64_t d = 0; d < rank_of(unweighted); ++d) {
    if (!llvm::is_contained(depth, d)) {
      rows.push_back(d);
    }
  }
  auto type = static_tensor(weighted);
  const mlir::Type condition = mlir::IntegerType::get(type.getContext(), 1);
  const auto no = mlir::DenseElementsAttr::get(mlir::RankedTensorType::get({}, condition), false);
  mlir::Value differs = builder.convert(location, unweighted, condition);  // from 0
  if (!depth.empty()) {
    differs = builder.reduce(location, differs, depth, "stablehlo.or", no);
    differs = builder.broadcast(location, differs, type.clone(condition), rows);
  }
  return builder.select(location, differs, weighted, unweighted);
}

// `weighted` may be masked by a select, and then rounded.
std::optional<Rearrangement> move_weights_to_output(mlir::Operation* product, unsigned side, mlir::Operation* weighted,
                                                    mlir::Operation* mask, mlir::Operation* rounds) {
  for (unsigned of = 0; of < 3; ++of) {
    const auto row = row_weights(weighted, of);
    const auto weights =
        row ? moved(row->weights, [&](int64_t d) { return in_result(product, side, d); }) : std::nullopt;
    // Weights that depend on the scores are part of the softmax, such as 1 / sum, or a guard of it.
    if (!weights || !may_be_weighted(product->getResult(0)) || !may_be_weighted(weighted->getResult(0)) ||
        weighted->getBlock() != product->getBlock() || may_be_of_scores(weights->source, weighted->getOperand(of)) ||
        (mask != nullptr && !may_move_behind_mask(*row))) {
      continue;
    }
    Rearrangement found;
    Builder builder(product, found.added);
    mlir::Value operands[2];
    operands[side] = weighted->getOperand(of);
    for (mlir::Operation* const next : {mask, rounds}) {
      operands[side] = next ? like(builder, next, operands[side]) : operands[side];
    }
    operands[1 - side] = product->getOperand(1 - side);
    const mlir::Value unweighted = builder.like(product, operands, product->getResult(0).getType());
    found.product = unweighted.getDefiningOp();
    Weigher weigh(found);
    mlir::Value output = weigh(product, unweighted, *row, *weights);
    if (mask != nullptr && !keeps_zeros(*row)) {
      output = with_zero_rows(product, side, unweighted, output, builder);
    }
    replace(found, product->getResult(0), output);
    weigh_output_gradient(
        product, side, *row,
        {{weighted->getResult(0), weighted->getOperand(of)}, {product->getOperand(side), operands[side]}}, mask, weigh,
        found);
    return found;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Rearrangement> move_weights_to_output(mlir::Operation* product) {
  if (!is_product(product) || kind(product) != OpKind::kDotGeneral) {
    return std::nullopt;
  }
  for (unsigned side = 0; side < 2; ++side) {
    const auto [last, rounds] = factor_at(product, side);
    if (auto found = move_weights_to_output(product, side, last, nullptr, rounds)) {
      return found;
    }
    const auto masked = masked_by(last);
    mlir::Operation* const weighted = masked ? last->getOperand(*masked).getDefiningOp() : nullptr;
    if (weighted != nullptr && weighted->getBlock() == product->getBlock()) {
      if (auto found = move_weights_to_output(product, side, weighted, last, rounds)) {
        return found;
      }
    }
  }
  return std::nullopt;
}

}  // namespace flashlift::stablehlo
