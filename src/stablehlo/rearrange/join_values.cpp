// Products of the same probabilities with different values, (p @ v, p @ w): one product with both values side by side.

#include <algorithm>

#include "problem/sizes.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/builder.h"
#include "stablehlo/rearrange/rearrange.h"

namespace flashlift::stablehlo {
namespace {

// A product, and which of its operands is meant.
struct Use {
  mlir::Operation* product;
  unsigned side;
  int64_t start = 0;  // of its part in the joined product's depth

  mlir::Value operand() const { return product->getOperand(side); }
  mlir::Value other() const { return product->getOperand(1 - side); }
  OperandDims own() const { return operand_dims(product, side); }
  OperandDims others() const { return operand_dims(product, 1 - side); }
};

// The products that read a value, in the order of the block.
std::vector<Use> products_of(mlir::Value value, mlir::Block* block) {
  std::vector<Use> found;
  for (mlir::OpOperand& use : value.getUses()) {
    mlir::Operation* const user = use.getOwner();
    if (user->getBlock() == block && is_product(user) && kind(user) == OpKind::kDotGeneral && !user->use_empty() &&
        user->getOperand(0) != user->getOperand(1) && !side_summed_by_product(user)) {
      found.push_back({.product = user, .side = use.getOperandNumber()});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Use& x, const Use& y) { return x.product->isBeforeInBlock(y.product); });
  return found;
}

// Moves the definition of a value, and of all that it is computed from, before an operation of the same block. Does
// nothing if one of them depends on `without`, or may have effects.
bool bring_before(mlir::Value value, mlir::Operation* before, const std::vector<Use>& without) {
  constexpr size_t kMost = 200;
  std::vector<mlir::Operation*> later;
  std::vector<mlir::Operation*> pending = {value.getDefiningOp()};
  while (!pending.empty()) {
    mlir::Operation* const op = pending.back();
    pending.pop_back();
    if (op == nullptr || op->getBlock() != before->getBlock() || op->isBeforeInBlock(before) ||
        llvm::is_contained(later, op)) {
      continue;
    }
    if (op == before || later.size() == kMost || !is_removable(op) || op->getNumRegions() != 0 ||
        llvm::any_of(without, [&](const Use& use) { return use.product == op; })) {
      return false;
    }
    later.push_back(op);
    for (const mlir::Value operand : op->getOperands()) {
      pending.push_back(operand.getDefiningOp());
    }
  }
  std::sort(later.begin(), later.end(), [](mlir::Operation* x, mlir::Operation* y) { return x->isBeforeInBlock(y); });
  for (mlir::Operation* op : later) {
    op->moveBefore(before);
  }
  return true;
}

int64_t count(mlir::Value value, const std::vector<int64_t>& dims) {
  int64_t elements = 1;
  for (const int64_t dim : dims) {
    elements *= size_of(value, dim);
  }
  return elements;
}

class ValueJoiner {
 public:
  explicit ValueJoiner(const Use& first) : first_(first) {}

  std::optional<Rearrangement> join() {
    const std::vector<Use> outputs = alike(first_);
    if (outputs.size() < 2 || depth_of(outputs) > problem::kMostDepth) {
      return std::nullopt;
    }
    const std::vector<Use> gradients = gradients_of(outputs);
    for (const Use& output : outputs) {
      if (!bring_before(output.other(), outputs[0].product, outputs)) {
        return std::nullopt;
      }
    }
    Builder builder(outputs[0].product, found_.added);
    found_.product = join_products(outputs, joined_others(builder, outputs));
    if (!gradients.empty()) {
      join_gradients(gradients);
    } else {
      join_gradients_of_values(depth_of(outputs));
    }
    return std::move(found_);
  }

 private:
  static int64_t depth_of(const std::vector<Use>& uses) {
    return uses.back().start + count(uses.back().other(), uses.back().others().free);
  }

  // The products that sum the same operand over the same dimensions, each with another one.
  static std::vector<Use> alike(const Use& first) {
    std::vector<Use> found = products_of(first.operand(), first.product->getBlock());
    const OperandDims dims = first.own();
    const auto type = [](mlir::Value value) { return static_tensor(value).getElementType(); };
    std::erase_if(found, [&](const Use& use) {
      const OperandDims own = use.own();
      return own.batch != dims.batch || own.contract != dims.contract || type(use.other()) != type(first.other()) ||
             type(use.product->getResult(0)) != type(first.product->getResult(0));
    });
    for (size_t i = 1; i < found.size(); ++i) {
      found[i].start = found[i - 1].start + count(found[i - 1].other(), found[i - 1].others().free);
    }
    return found;
  }

  // The operand with the dimensions of these lists in this order, the last list as one dimension.
  mlir::Value in_order(Builder& builder, mlir::Value value, const std::vector<int64_t>& batch,
                       const std::vector<int64_t>& rows, const std::vector<int64_t>& depth) {
    std::vector<int64_t> order = batch;
    order.insert(order.end(), rows.begin(), rows.end());
    std::vector<int64_t> sizes;
    for (const int64_t dim : order) {
      sizes.push_back(size_of(value, dim));
    }
    order.insert(order.end(), depth.begin(), depth.end());
    sizes.push_back(count(value, depth));
    const mlir::Location location = value.getLoc();
    return builder.reshape(location, builder.transpose(location, value, order), sizes);
  }

  // Values, or gradients of outputs, side by side along the depth.
  mlir::Value side_by_side(Builder& builder, const std::vector<mlir::Value>& parts) {
    mlir::Value all = parts[0];
    for (size_t i = 1; i < parts.size(); ++i) {
      all = builder.concatenate(parts[i].getLoc(), all, parts[i], static_tensor(all).getRank() - 1);
    }
    return all;
  }

  // The other operands of products of the same operand: the summed dimensions are those of rows.
  mlir::Value joined_others(Builder& builder, const std::vector<Use>& uses) {
    std::vector<mlir::Value> parts;
    for (const Use& use : uses) {
      const OperandDims dims = use.others();
      parts.push_back(in_order(builder, use.other(), dims.batch, dims.contract, dims.free));
    }
    return side_by_side(builder, parts);
  }

  // Replaces products of the same operand by parts of one product, before the first of them.
  mlir::Operation* join_products(const std::vector<Use>& uses, mlir::Value others) {
    mlir::Operation* const before = first_in_block(uses);
    Builder builder(before, found_.added);
    const mlir::Location location = before->getLoc();
    const OperandDims own = uses[0].own();
    DotDims dims{.lhs_batch = own.batch, .rhs_batch = {}, .lhs_contract = own.contract, .rhs_contract = {}};
    std::vector<int64_t> sizes;
    for (const int64_t dim : own.batch) {
      dims.rhs_batch.push_back(static_cast<int64_t>(dims.rhs_batch.size()));
      sizes.push_back(size_of(uses[0].operand(), dim));
    }
    for (size_t i = 0; i < own.contract.size(); ++i) {
      dims.rhs_contract.push_back(static_cast<int64_t>(own.batch.size() + i));
    }
    for (const int64_t dim : own.free) {
      sizes.push_back(size_of(uses[0].operand(), dim));
    }
    sizes.push_back(size_of(others, static_tensor(others).getRank() - 1));
    const auto type = static_tensor(before->getResult(0));
    const mlir::Value all = builder.dot(location, uses[0].operand(), others, dims, type.clone(sizes));
    for (const Use& use : uses) {
      const int64_t limit = use.start + count(use.other(), use.others().free);
      const mlir::Value part = builder.slice(location, all, static_cast<int64_t>(sizes.size()) - 1, use.start, limit);
      replace(found_, use.product->getResult(0), as_result_of(builder, use, part));
    }
    return all.getDefiningOp();
  }

  // The product's result from one with its batch dimensions, the free dimensions of the shared operand, and the depth.
  static mlir::Value as_result_of(Builder& builder, const Use& use, mlir::Value part) {
    const auto type = static_tensor(use.product->getResult(0));
    const size_t batch = use.own().batch.size();
    const size_t rows = use.own().free.size();
    const size_t depth = use.others().free.size();
    std::vector<int64_t> sizes(shape(part).begin(), shape(part).end() - 1);
    for (const int64_t dim : use.others().free) {
      sizes.push_back(size_of(use.other(), dim));
    }
    std::vector<int64_t> order;
    for (size_t i = 0; i < batch; ++i) {
      order.push_back(static_cast<int64_t>(i));
    }
    for (size_t i = 0; i < depth + rows; ++i) {  // the left operand's free dimensions, and then the right one's
      const bool is_depth = use.side == 0 ? i >= rows : i < depth;
      const size_t at =
          is_depth ? batch + rows + (use.side == 0 ? i - rows : i) : batch + (use.side == 0 ? i : i - depth);
      order.push_back(static_cast<int64_t>(at));
    }
    const mlir::Location location = use.product->getLoc();
    return builder.convert(location, builder.transpose(location, builder.reshape(location, part, sizes), order),
                           type.getElementType());
  }

  // The gradient of the probabilities may be a sum of products, each of an output's gradient and its values. Returns
  // these products, in the order of the outputs, or nothing.
  std::vector<Use> gradients_of(const std::vector<Use>& outputs) {
    std::vector<Use> gradients;
    for (const Use& output : outputs) {
      const std::vector<Use> of_values = products_of(output.other(), output.product->getBlock());
      const auto found = llvm::find_if(of_values, [&](const Use& use) {
        return is_gradient(use, output) && (gradients.empty() || use.side == gradients[0].side);
      });
      if (found == of_values.end()) {
        return {};
      }
      gradients.push_back(*found);
      gradients.back().start = output.start;
    }
    std::vector<mlir::Value> left;  // of the terms
    for (const Use& gradient : gradients) {
      left.push_back(gradient.product->getResult(0));
    }
    mlir::Value sum = left.back();
    std::erase(left, sum);
    while (!left.empty()) {  // each addition adds one more product
      mlir::Operation* const add = sum.hasOneUse() ? *sum.getUsers().begin() : nullptr;
      if (add == nullptr || kind(add) != OpKind::kAdd) {
        return {};
      }
      const mlir::Value other = add->getOperand(add->getOperand(0) == sum ? 1 : 0);
      if (!other.hasOneUse() || std::erase(left, other) != 1) {
        return {};
      }
      sum = add->getResult(0);
    }
    sum_ = sum.getDefiningOp();
    return gradients;
  }

  // Whether the product sums over the depth of the output's values, as the gradient of the probabilities does.
  static bool is_gradient(const Use& use, const Use& output) {
    const OperandDims own = use.own();
    const OperandDims of_output = output.others();
    return output.product->isBeforeInBlock(use.product) && own.batch == of_output.batch &&
           own.contract == of_output.free && own.free == of_output.contract &&
           use.product->getResult(0).getType() == output.operand().getType();
  }

  // The gradients of the values are products of the probabilities with an output's gradient each. A module may have
  // only some of them.
  std::vector<Use> gradients_of_values(const std::vector<Use>& gradients) {
    std::vector<Use> found;
    const std::vector<Use> all = products_of(first_.operand(), first_.product->getBlock());
    for (const Use& gradient : gradients) {
      const OperandDims wanted = gradient.others();
      const auto use = llvm::find_if(all, [&](const Use& each) {
        const OperandDims dims = each.others();
        // Outputs that are added have one gradient.
        const bool is_new = llvm::none_of(found, [&](const Use& other) { return other.product == each.product; });
        return is_new && each.other() == gradient.other() && dims.batch == wanted.batch &&
               dims.contract == wanted.free && dims.free == wanted.contract &&
               each.own().batch == (found.empty() ? each : found[0]).own().batch;
      });
      if (use != all.end()) {
        found.push_back(*use);
        found.back().start = gradient.start;
      }
    }
    return found;
  }

  // Replaces the sum by one product, and so the gradients of the values. Both read the same gradient of all outputs.
  void join_gradients(const std::vector<Use>& gradients) {
    std::vector<Use> of_values = gradients_of_values(gradients);
    mlir::Operation* first = of_values.empty() ? sum_ : first_in_block(of_values);
    first = sum_->isBeforeInBlock(first) ? sum_ : first;
    for (const Use& gradient : gradients) {
      if (!bring_before(gradient.other(), first, of_values)) {
        of_values.clear();
        first = sum_;
        break;
      }
    }
    Builder early(first, found_.added);
    std::vector<mlir::Value> parts;
    for (const Use& gradient : gradients) {
      const OperandDims dims = gradient.others();
      parts.push_back(in_order(early, gradient.other(), dims.batch, dims.free, dims.contract));
    }
    const mlir::Value d_out = side_by_side(early, parts);
    parts.clear();
    Builder builder(sum_, found_.added);
    for (const Use& gradient : gradients) {
      const OperandDims dims = gradient.own();
      parts.push_back(in_order(builder, gradient.operand(), dims.batch, dims.free, dims.contract));
    }
    const mlir::Value values = side_by_side(builder, parts);
    mlir::Value operands[2];
    operands[gradients[0].side] = values;
    operands[1 - gradients[0].side] = d_out;
    DotDims dims;
    for (size_t i = 0; i < gradients[0].own().batch.size(); ++i) {
      dims.lhs_batch.push_back(static_cast<int64_t>(i));
      dims.rhs_batch.push_back(static_cast<int64_t>(i));
    }
    dims.lhs_contract.push_back(static_tensor(operands[0]).getRank() - 1);
    dims.rhs_contract.push_back(static_tensor(operands[1]).getRank() - 1);
    replace(found_, sum_->getResult(0),
            builder.dot(sum_->getLoc(), operands[0], operands[1], dims, sum_->getResult(0).getType()));
    if (!of_values.empty()) {
      join_products(of_values, d_out);
    }
  }

  // Replaces the gradients of the values by one product, in a module without the gradient of the probabilities.
  void join_gradients_of_values(int64_t depth) {
    const std::vector<Use> all = products_of(first_.operand(), first_.product->getBlock());
    const auto other = llvm::find_if(all, [&](const Use& use) { return use.own().contract != first_.own().contract; });
    const std::vector<Use> gradients = other == all.end() ? std::vector<Use>() : alike(*other);
    if (gradients.size() < 2 || depth_of(gradients) != depth) {
      return;
    }
    for (const Use& gradient : gradients) {
      if (!bring_before(gradient.other(), gradients[0].product, gradients)) {
        return;
      }
    }
    Builder builder(gradients[0].product, found_.added);
    join_products(gradients, joined_others(builder, gradients));
  }

  static mlir::Operation* first_in_block(const std::vector<Use>& uses) {
    return std::min_element(uses.begin(), uses.end(),
                            [](const Use& x, const Use& y) { return x.product->isBeforeInBlock(y.product); })
        ->product;
  }

  Use first_;
  mlir::Operation* sum_ = nullptr;  // that gives the gradient of the probabilities
  Rearrangement found_;
};

}  // namespace

std::optional<Rearrangement> join_values(mlir::Operation* product) {
  if (!is_product(product) || kind(product) != OpKind::kDotGeneral) {
    return std::nullopt;
  }
  for (const unsigned side : {0U, 1U}) {
    if (auto joined = ValueJoiner({.product = product, .side = side}).join()) {
      return joined;
    }
  }
  return std::nullopt;
}

}  // namespace flashlift::stablehlo
