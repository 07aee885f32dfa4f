// Adds an attention's output, or its division by the row sum, to a module that computes only its gradient.

#include "mlir/IR/Builders.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/lift/walk.h"
#include "stablehlo/reader/attributes.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"
#include "stablehlo/rearrange/rearrange.h"
#include "stablehlo/rewrite/build.h"

namespace flashlift::stablehlo {
namespace {

struct Behind {
  std::vector<mlir::Operation*> exponentials;
  std::vector<mlir::Operation*> products;
};

constexpr size_t kFarthest = 300;

// Whether the product sums exponentials, as a row sum does. One that sums something else may multiply the values with a
// constant gradient of the output.
bool sums_exponentials(mlir::Operation* product) {
  const auto side = side_summed_by_product(product);
  return side && any_operation({product->getOperand(*side).getDefiningOp()}, kFarthest,
                               [](mlir::Operation* op, OperationStack& stack) {
                                 if (!is_product(op) || side_summed_by_product(op)) {
                                   push_definitions(op, stack);
                                 }
                                 return kind(op) == OpKind::kExponential;
                               });
}

// The exponentials that a value depends on, up to the nearest products, and these products.
Behind behind(mlir::Value value) {
  Behind found;
  any_operation({value.getDefiningOp()}, kFarthest, [&](mlir::Operation* op, OperationStack& stack) {
    if (is_product(op) && !sums_exponentials(op)) {
      found.products.push_back(op);
      return false;
    }
    if (kind(op) == OpKind::kExponential && static_tensor(op->getResult(0))) {
      found.exponentials.push_back(op);
    }
    push_definitions(op, stack);
    return false;
  });
  return found;
}

struct RowSum {
  mlir::Value of;  // the exponentials, possibly converted
  mlir::Value sum;
  int64_t dim = 0;
};

// The row sum of the exponentials, if there is one.
std::optional<RowSum> row_sum(mlir::Value exponentials) {
  for (mlir::Operation* user : exponentials.getUsers()) {
    const auto how = kind(user) == OpKind::kReduce ? reduction(user) : std::nullopt;
    if (how && how->reducer == Reducer::kAdd && how->inputs.size() == 1 && how->dims.size() == 1 &&
        splat(how->inits[0]) == 0) {
      return RowSum{.of = exponentials, .sum = user->getResult(0), .dim = how->dims[0]};
    }
    const bool widens = kind(user) == OpKind::kConvert && dtype(user->getResult(0).getType()) == DType::kF32;
    if (const auto found = widens ? row_sum(user->getResult(0)) : std::nullopt) {
      return found;
    }
  }
  return std::nullopt;
}

mlir::NamedAttribute named(mlir::OpBuilder& builder, llvm::StringRef name, mlir::Attribute value) {
  return {builder.getStringAttr(name), value};
}

// Creates the product of probabilities and values. `gradient` is the product of the output's gradient and the values,
// with the probabilities' dimensions in the same order. Returns null if this is not possible.
mlir::Operation* output_of(mlir::OpBuilder& builder, mlir::Value probabilities, int64_t key,
                           mlir::Operation* gradient) {
  const auto batch = static_cast<int64_t>(operand_dims(gradient, 0).batch.size());
  const auto free = static_cast<int64_t>(operand_dims(gradient, 0).free.size());
  if (key < batch) {
    return nullptr;
  }
  const unsigned side = key < batch + free ? 0 : 1;  // the operand that is the values
  const OperandDims dims = operand_dims(gradient, side);
  const mlir::Value values = gradient->getOperand(side);
  if (dims.free.size() != 1 || dims.contract.size() != 1) {
    return nullptr;
  }
  DotDims wanted{.lhs_batch = {}, .rhs_batch = dims.batch, .lhs_contract = {key}, .rhs_contract = dims.free};
  llvm::SmallVector<int64_t> sizes;
  for (int64_t d = 0; d < batch; ++d) {
    wanted.lhs_batch.push_back(d);
  }
  const auto of_probabilities = shape(probabilities);
  for (int64_t d = 0; d < static_cast<int64_t>(of_probabilities.size()); ++d) {
    if (d != key) {
      sizes.push_back(of_probabilities[static_cast<size_t>(d)]);
    }
  }
  sizes.push_back(shape(values)[static_cast<size_t>(dims.contract[0])]);
  const auto type = static_tensor(values);
  const mlir::Value converted = convert(builder, gradient->getLoc(), probabilities, type.getElementType());
  const auto text = mlir::OpaqueAttr::get(builder.getStringAttr("stablehlo"), print_dot(wanted),
                                          mlir::NoneType::get(builder.getContext()));
  return build(builder, gradient->getLoc(), "stablehlo.dot_general", {converted, values},
               mlir::TypeRange(type.clone(sizes)), named(builder, "dot_dimension_numbers", text));
}

// The permutation with which a transpose gives the product's result this shape; empty if the result has it already.
std::optional<llvm::ArrayRef<int64_t>> permutation_to(mlir::Operation* product, llvm::ArrayRef<int64_t> wanted) {
  for (mlir::Operation* user : product->getUsers()) {
    if (kind(user) == OpKind::kTranspose && shape(user->getResult(0)) == wanted) {
      return permutation(user);
    }
  }
  return shape(product->getResult(0)) == wanted ? std::optional(llvm::ArrayRef<int64_t>()) : std::nullopt;
}

mlir::Value without_conversions(mlir::Value value) {
  mlir::Operation* const conversion = defining(value, OpKind::kConvert);
  return conversion != nullptr ? without_conversions(conversion->getOperand(0)) : value;
}

// The product's result, and what only another layout or type makes of it.
std::vector<mlir::Value> copies_of_result(mlir::Operation* product) {
  std::vector<mlir::Value> copies{product->getResult(0)};
  for (size_t i = 0; i < copies.size(); ++i) {
    for (mlir::Operation* user : copies[i].getUsers()) {
      if (kind(user) == OpKind::kTranspose || kind(user) == OpKind::kConvert) {
        copies.push_back(user->getResult(0));
      }
    }
  }
  return copies;
}

// An operation that divides something with the product's dimensions by the row sum, as the gradient of the output is
// divided, or multiplies it by a number that is computed from the row sum.
struct Division {
  mlir::Operation* op = nullptr;
  mlir::Value result;  // of the product, in the operation's layout and type
};

std::optional<Division> division_by(mlir::Value row_sum, mlir::Operation* product) {
  const std::vector<mlir::Value> results = copies_of_result(product);
  std::optional<Division> found;
  any_operation({row_sum.getDefiningOp()}, kFarthest, [&](mlir::Operation* op, OperationStack& stack) {
    for (mlir::OpOperand& use : op->getUses()) {
      mlir::Operation* const user = use.getOwner();
      const bool divides = kind(user) == OpKind::kDivide && use.getOperandNumber() == 1;
      const auto result =
          llvm::find_if(results, [&](mlir::Value copy) { return copy.getType() == use.get().getType(); });
      if (result == results.end()) {
        if (!is_product(user)) {
          stack.push_back(user);
        }
      } else if ((divides || (kind(user) == OpKind::kMultiply && !found)) && kind(op) == OpKind::kBroadcastInDim) {
        found = Division{.op = user, .result = *result};
        if (divides) {
          return true;
        }
      }
    }
    return false;
  });
  return found;
}

}  // namespace

std::optional<Rearrangement> add_missing_division(mlir::Operation* product) {
  if (!is_product(product)) {
    return std::nullopt;
  }
  for (unsigned side = 0; side < 2; ++side) {
    const OperandDims dims = operand_dims(product, side);
    const auto sum = row_sum(without_conversions(product->getOperand(side)));
    if (!sum || dims.contract.size() != 1 || dims.contract[0] != sum->dim) {
      continue;
    }
    const auto division = division_by(sum->sum, product);
    if (!division || division->op->getBlock() != product->getBlock()) {
      continue;
    }
    mlir::Operation* const made = division->result.getDefiningOp();
    Rearrangement found;
    Builder builder(made->isBeforeInBlock(division->op) ? division->op : made->getNextNode(), found.added);
    llvm::SmallVector<mlir::Value> operands(division->op->getOperands());
    const unsigned of_row =
        kind(division->op) == OpKind::kDivide || defining(operands[1], OpKind::kBroadcastInDim) != nullptr ? 1 : 0;
    operands[1 - of_row] = division->result;
    builder.like(division->op, operands, division->result.getType());
    found.product = product;
    return found;
  }
  return std::nullopt;
}

std::optional<Rearrangement> add_missing_output(mlir::Operation* product) {
  if (!is_product(product)) {
    return std::nullopt;
  }
  for (unsigned side = 0; side < 2; ++side) {
    const Behind parts = behind(product->getOperand(side));
    for (mlir::Operation* exponential : parts.exponentials) {
      const auto sum = row_sum(exponential->getResult(0));
      const mlir::Value numerator = sum ? sum->of : exponential->getResult(0);
      const Behind of_scores = behind(numerator);
      const int64_t key = sum ? sum->dim : static_cast<int64_t>(shape(numerator).size()) - 1;
      for (mlir::Operation* gradient : parts.products) {
        const auto order = permutation_to(gradient, shape(numerator));
        if (llvm::is_contained(of_scores.products, gradient) || kind(gradient) != OpKind::kDotGeneral || key < 0 ||
            !order || exponential->getBlock() != product->getBlock() || gradient->getBlock() != product->getBlock()) {
          continue;
        }
        mlir::OpBuilder builder(product);
        mlir::Operation* const before = product->getPrevNode();
        mlir::Value probabilities = numerator;
        if (sum) {
          llvm::SmallVector<int64_t> dims;
          for (int64_t d = 0; d < static_cast<int64_t>(shape(numerator).size()); ++d) {
            if (d != key) {
              dims.push_back(d);
            }
          }
          const mlir::Value spread = build(builder, product->getLoc(), "stablehlo.broadcast_in_dim", sum->sum,
                                           mlir::TypeRange(numerator.getType()),
                                           named(builder, "broadcast_dimensions", builder.getDenseI64ArrayAttr(dims)))
                                         ->getResult(0);
          probabilities = build(builder, product->getLoc(), "stablehlo.divide", {numerator, spread},
                                mlir::TypeRange(numerator.getType()))
                              ->getResult(0);
        }
        Rearrangement found;
        probabilities = transpose(builder, product->getLoc(), probabilities, inverse(*order));
        found.product =
            output_of(builder, probabilities, order->empty() ? key : (*order)[static_cast<size_t>(key)], gradient);
        for (mlir::Operation* op = before == nullptr ? &product->getBlock()->front() : before->getNextNode();
             op != product; op = op->getNextNode()) {
          found.added.push_back(op);
        }
        if (found.product != nullptr) {
          return found;
        }
        take_back(found);
      }
    }
  }
  return std::nullopt;
}

}  // namespace flashlift::stablehlo
