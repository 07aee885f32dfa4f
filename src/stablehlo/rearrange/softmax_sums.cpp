// Products with a sum or difference of several softmaxes, as in the Differential Transformer: (p1 - w p2) v.

#include <map>
#include <set>

#include "stablehlo/lift/products.h"
#include "stablehlo/lift/walk.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"
#include "stablehlo/rearrange/rearrange.h"
#include "stablehlo/rearrange/weights.h"

namespace flashlift::stablehlo {
namespace {

// The nearest products behind the exponentials of scores that a value depends on without a product in between. Empty if
// there are too many operations.
std::set<mlir::Operation*> score_products(mlir::Value value) {
  constexpr size_t kFarthest = 500;
  const int64_t count = static_tensor(value).getNumElements();
  OperationStack exponentials;
  std::set<mlir::Operation*> products;
  size_t visited = 0;
  const auto goes_on = [&](mlir::Operation* op, OperationStack& stack) {
    const bool is_end = is_product(op) && !side_summed_by_product(op);
    if (!is_end) {
      push_definitions(op, stack);
    }
    return is_end;
  };
  const bool is_near =
      !any_operation({value.getDefiningOp()}, kFarthest + 1, [&](mlir::Operation* op, OperationStack& stack) {
        if (is_exponential(op) && static_tensor(op->getResult(0)) &&
            static_tensor(op->getResult(0)).getNumElements() >= count) {
          exponentials.push_back(op);
        }
        goes_on(op, stack);
        return ++visited > kFarthest;
      });
  if (!is_near) {
    return {};
  }
  const bool are_near = !any_operation(exponentials, kFarthest + 1, [&](mlir::Operation* op, OperationStack& stack) {
    if (goes_on(op, stack)) {
      products.insert(op);
    }
    return ++visited > 2 * kFarthest;
  });
  return are_near ? products : std::set<mlir::Operation*>();
}

// Whether both are of softmaxes, each of scores of its own. Terms of a gradient are of the same scores: that of the
// probabilities, and that of their log-sum-exp.
bool are_of_different_softmaxes(mlir::Value x, mlir::Value y) {
  const auto of_x = score_products(x);
  const auto of_y = of_x.empty() ? of_x : score_products(y);
  const auto has_own = [](const std::set<mlir::Operation*>& some, const std::set<mlir::Operation*>& others) {
    return llvm::any_of(some, [&](mlir::Operation* op) { return !others.contains(op); });
  };
  return has_own(of_x, of_y) && has_own(of_y, of_x);
}

// The value times -1, in the form in which weights of rows are found.
mlir::Value negative(Builder& builder, mlir::Location location, mlir::Value value) {
  auto type = static_tensor(value);
  auto element = mlir::cast<mlir::FloatType>(type.getElementType());
  const auto number = mlir::RankedTensorType::get({}, element);
  const mlir::Value minus_one =
      builder.constant(location, mlir::DenseElementsAttr::get(number, mlir::FloatAttr::get(element, -1.0).getValue()));
  return builder.multiply(location, value, builder.broadcast(location, minus_one, type, {}));
}

// Whether the operation converts, weights or masks this operand, so that it may be applied to each term of a sum.
bool carries(mlir::OpOperand& use) {
  mlir::Operation* const op = use.getOwner();
  const unsigned number = use.getOperandNumber();
  if (op->getNumResults() != 1 || !static_tensor(op->getResult(0))) {
    return false;
  }
  switch (kind(op)) {
    case OpKind::kConvert:
      return true;
    case OpKind::kMultiply:
      return op->getOperand(0) != op->getOperand(1);
    case OpKind::kDivide:
      return number == 0;
    case OpKind::kSelect:
      return number > 0 && splat(op->getOperand(3 - number)) == 0.0;
    default:
      return false;
  }
}

class Splitter {
 public:
  explicit Splitter(mlir::Operation* sum) : sum_(sum) {}

  std::optional<Rearrangement> split() {
    find_products(sum_, {});
    if (products_.empty() || !are_of_different_softmaxes(sum_->getOperand(0), sum_->getOperand(1))) {
      return std::nullopt;
    }
    Builder builder(sum_, found_.added);
    for (const unsigned of : {0U, 1U}) {
      terms_[of] = term(builder, of);
    }
    for (const Read& read : products_) {
      split(read);
    }
    for (const Read& read : products_) {
      multiply_negative_gradients(read.product->getOperand(1 - read.side));
    }
    return std::move(found_);
  }

 private:
  struct Read {
    mlir::Operation* product;
    unsigned side;
    std::vector<mlir::OpOperand*> through;  // operations from the sum to the product, which convert and weight it
  };

  // Finds the products that read the sum.
  void find_products(mlir::Operation* op, const std::vector<mlir::OpOperand*>& through) {
    constexpr size_t kFarthest = 4;
    constexpr size_t kMostUses = 100;
    for (mlir::OpOperand& use : op->getUses()) {
      mlir::Operation* const user = use.getOwner();
      if (user->getBlock() != sum_->getBlock()) {
        continue;
      }
      if (++uses_ > kMostUses) {
        return;
      }
      if (kind(user) == OpKind::kDotGeneral && is_product(user) && !user->use_empty() &&
          user->getOperand(0) != user->getOperand(1)) {
        products_.push_back({user, use.getOperandNumber(), through});
      } else if (through.size() < kFarthest && carries(use)) {
        std::vector<mlir::OpOperand*> further = through;
        further.push_back(&use);
        find_products(user, further);
      }
    }
  }

  mlir::Value term(Builder& builder, unsigned of) {
    mlir::Value value = sum_->getOperand(of);
    bool is_negative = of == 1 && kind(sum_) == OpKind::kSubtract;
    while (mlir::Operation* const negate = defining(value, OpKind::kNegate)) {
      value = negate->getOperand(0);
      is_negative = !is_negative;
    }
    return is_negative ? negative(builder, sum_->getLoc(), value) : value;
  }

  // The term that was converted and weighted like the sum. Products of the forward and backward pass share it.
  mlir::Value carried(unsigned of, const std::vector<mlir::OpOperand*>& through) {
    mlir::Value value = terms_[of];
    for (mlir::OpOperand* use : through) {
      mlir::Operation* const like = use->getOwner();
      mlir::Value& made = carried_[{like, of}];
      if (!made) {
        Builder builder(like, found_.added);
        llvm::SmallVector<mlir::Value> operands(like->getOperands());
        operands[use->getOperandNumber()] = value;
        made = builder.like(like, operands, like->getResult(0).getType());
      }
      value = made;
    }
    return value;
  }

  void split(const Read& read) {
    mlir::Operation* const product = read.product;
    auto type = static_tensor(product->getResult(0));
    // Rounded only once, because the terms may nearly cancel. An algorithm determines the type of its result.
    const bool is_narrow =
        (dtype(type) == DType::kBF16 || dtype(type) == DType::kF16) && !product->hasAttr("algorithm");
    const mlir::Type element = is_narrow ? mlir::Float32Type::get(product->getContext()) : type.getElementType();
    mlir::Value results[2];
    for (const unsigned of : {0U, 1U}) {
      mlir::Value operands[2];
      operands[read.side] = carried(of, read.through);
      operands[1 - read.side] = product->getOperand(1 - read.side);
      Builder builder(product, found_.added);
      results[of] = builder.like(product, operands, type.clone(element));
    }
    Builder builder(product, found_.added);
    const mlir::Location location = product->getLoc();
    replace(found_, product->getResult(0),
            builder.convert(location, builder.add(location, results[0], results[1]), type.getElementType()));
  }

  // The gradient of a subtracted softmax is the negative one of a product with the same values.
  void multiply_negative_gradients(mlir::Value values) {
    std::vector<mlir::Operation*> carriers;
    llvm::copy_if(values.getUsers(), std::back_inserter(carriers),
                  [&](mlir::Operation* user) { return is_product(user) && user->getBlock() == sum_->getBlock(); });
    for (size_t i = 0; i < carriers.size(); ++i) {
      for (mlir::OpOperand& use : llvm::make_early_inc_range(carriers[i]->getUses())) {
        mlir::Operation* const user = use.getOwner();
        if (kind(user) == OpKind::kNegate) {
          Builder builder(user, found_.added);
          replace(found_, user->getResult(0), negative(builder, user->getLoc(), user->getOperand(0)));
        } else if (carries(use)) {
          carriers.push_back(user);
        }
      }
    }
  }

  mlir::Operation* sum_;
  size_t uses_ = 0;  // that were looked at
  std::vector<Read> products_;
  mlir::Value terms_[2];
  std::map<std::pair<mlir::Operation*, unsigned>, mlir::Value> carried_;
  Rearrangement found_;
};

}  // namespace

std::optional<Rearrangement> split_sum_of_softmaxes(mlir::Operation* sum) {
  const bool is_sum = sum != nullptr && (kind(sum) == OpKind::kAdd || kind(sum) == OpKind::kSubtract);
  const auto type = is_sum ? static_tensor(sum->getResult(0)) : mlir::RankedTensorType();
  if (!type || !llvm::isa<mlir::FloatType>(type.getElementType())) {
    return std::nullopt;
  }
  auto found = Splitter(sum).split();
  if (found) {
    for (const mlir::Value term : sum->getOperands()) {
      if (auto inner = split_sum_of_softmaxes(term.getDefiningOp())) {
        llvm::append_range(found->replaced, inner->replaced);
        llvm::append_range(found->added, inner->added);
      }
    }
  }
  return found;
}

}  // namespace flashlift::stablehlo
