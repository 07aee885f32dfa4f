#include "stablehlo/rewrite/rewrite.h"

#include <numeric>
#include <optional>
#include <string_view>

#include "llvm/ADT/DenseSet.h"
#include "mlir/Analysis/TopologicalSortUtils.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"
#include "stablehlo/rewrite/decomposition.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

mlir::NamedAttribute named(mlir::Builder& builder, llvm::StringRef name, mlir::Attribute value) {
  return {builder.getStringAttr(name), value};
}

// The kernel's configuration: the call's backend_config, or the composite's attributes.
mlir::DictionaryAttr configuration(mlir::Builder& builder, const LiftedAttention& found,
                                   const std::string& gradients = {}) {
  llvm::SmallVector<mlir::NamedAttribute> entries;
  const auto add = [&](llvm::StringRef name, const std::string& value) {
    entries.push_back(named(builder, name, builder.getStringAttr(value)));
  };
  add("problem", print(gradients.empty() ? found.problem : found.gradient->problem));
  add("q_dims", found.q.dims);
  add("k_dims", found.k.dims);
  add("v_dims", found.v.dims);
  add("out_dims", found.out.dims);
  if (found.lse || found.gradient) {
    add("lse_dims", found.lse ? found.lse->dims : "bhs");
  }
  if (!gradients.empty()) {
    add("gradients", gradients);
    add("d_out_dims", found.gradient->d_out.dims);
    if (found.gradient->d_lse) {
      add("d_lse_dims", found.gradient->d_lse->dims);
    }
    for (const auto& [name, result] : {std::pair("d_q_dims", &found.gradient->d_q),
                                       {"d_k_dims", &found.gradient->d_k},
                                       {"d_v_dims", &found.gradient->d_v}}) {
      if (*result) {
        add(name, (*result)->dims);
      }
    }
  }
  return builder.getDictionaryAttr(entries);
}

// Checks that captured tensors are in the order of Problem::captures, in which the problem's text names them and in
// which readers of the call expect them.
Status check_captures(const Problem& problem, const std::vector<mlir::Value>& values) {
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));
  if (values.size() != problem.captures.size()) {
    return internal_error("the problem has {} captured tensors, and {} values", problem.captures.size(), values.size());
  }
  return {};
}

// Whether `from` depends on `value`.
bool depends_on(mlir::Value from, mlir::Value value) {
  llvm::SmallVector<mlir::Value> pending = {from};
  llvm::DenseSet<mlir::Operation*> seen;
  while (!pending.empty()) {
    const mlir::Value each = pending.pop_back_val();
    if (each == value) {
      return true;
    }
    mlir::Operation* op = each.getDefiningOp();
    if (op && seen.insert(op).second) {
      op->walk([&](mlir::Operation* inner) { pending.append(inner->operand_begin(), inner->operand_end()); });
    }
  }
  return false;
}

// The number of elements along the dimensions of a letter, as docs/custom_call.md defines it.
int64_t size_of(char letter, const std::string& dims, llvm::ArrayRef<int64_t> sizes) {
  int64_t size = 1;
  for (size_t i = 0; i < dims.size() && i < sizes.size(); ++i) {
    size *= dims[i] == letter ? sizes[i] : 1;
  }
  return size;
}

// Batches and heads may share an operand of a call, but positions in the sequence or the depth may not.
Status check_operand(std::string_view name, const std::string& dims, mlir::Value value, int64_t length, int64_t depth) {
  const llvm::ArrayRef<int64_t> sizes = mlir::cast<mlir::RankedTensorType>(value.getType()).getShape();
  if (dims.size() != sizes.size()) {
    return internal_error("{} has {} dimensions, but \"{}\" names {}", name, sizes.size(), dims, dims.size());
  }
  if (size_of('s', dims, sizes) != length || size_of('d', dims, sizes) != depth) {
    return unsupported("{} is the same along its sequence or its depth, broadcast from fewer elements", name);
  }
  return {};
}

// The operations that are inserted before `end`, once this was created.
struct NewOperations {
  explicit NewOperations(mlir::Operation* place) : previous(place->getPrevNode()), end(place) {}
  mlir::Block::iterator begin() const {
    return previous ? std::next(previous->getIterator()) : end->getBlock()->begin();
  }

  mlir::Operation* previous;
  mlir::Operation* end;
};

class Rewriter {
 public:
  Rewriter(const LiftedAttention& found, FuseAs as)
      : found_(found), as_(as), location_(found.second_product->getLoc()), builder_(found.second_product) {
    if (as_ == FuseAs::kCustomCall && found_.gradient) {
      choose_types_for_gradient();
    }
  }

  Status run() {
    const std::vector<mlir::Value>& captures = found_.captures;
    FLASHLIFT_RETURN_IF_ERROR(check_captures(found_.problem, captures));
    if (found_.gradient) {
      FLASHLIFT_RETURN_IF_ERROR(check_captures(found_.gradient->problem, found_.gradient->captures));
    }
    FLASHLIFT_RETURN_IF_ERROR(check_order(captures));
    if (found_.nan_where_lse_is_minus_infinity && !row_dims()) {
      return unsupported("rows without keys are NaN, and the rows of the log-sum-exp are not those of the output");
    }
    builder_.setInsertionPoint(place_of_call());
    const NewOperations added(&*builder_.getInsertionPoint());
    const llvm::SmallVector<mlir::Type> results = result_types();
    llvm::SmallVector<mlir::Value> operands = {view(found_.q), view(found_.k), view(found_.v)};
    if (Status status = check_operands(operands); !status.ok()) {
      remove_views(operands);
      return status;
    }
    operands.append(captures.begin(), captures.end());
    if (found_.sinks) {
      const llvm::SmallVector<int64_t> shape = {found_.problem.q_heads, found_.problem.sinks};
      const mlir::Value sinks = reshape(builder_, location_, view(*found_.sinks), shape);
      operands.push_back(convert(builder_, location_, sinks, builder_.getF32Type()));
    }
    if (found_.keep_mask) {
      operands.push_back(reshape(builder_, location_, view(*found_.keep_mask), found_.keep_shape));
    }
    mlir::Operation* call = nullptr;
    if (as_ == FuseAs::kCustomCall) {
      call = fused_call(builder_, location_, "flashlift.attention", operands, results, configuration(builder_, found_));
    } else {
      llvm::SmallVector<mlir::Type> operand_types(mlir::ValueRange(operands).getTypes());
      Result<std::string> function = add_decomposition(found_, operand_types, results);
      if (!function.ok()) {
        remove_views(operands);
        return function.error();
      }
      call = composite(operands, results, *function);
    }
    std::optional<NewOperations> backward;
    if (found_.gradient) {
      backward = backward_call(operands, call);
    }
    if (found_.out.replaced) {
      mlir::Value out = found_.nan_where_lse_is_minus_infinity ? with_nan_rows(call->getResults()) : call->getResult(0);
      replace(found_.out, found_.zero_where_all_is_dropped ? with_zero_rows(out, operands.back()) : out);
    }
    if (found_.lse) {
      replace(*found_.lse, call->getResult(1));
    }
    restore_order(added);
    if (backward) {
      restore_order(*backward);
    }
    return {};
  }

 private:
  // The backward pass is fastest with an f32 output and, if queries, keys and values are 16-bit, with the output's
  // gradient in their type.
  void choose_types_for_gradient() {
    LiftedGradient& gradient = *found_.gradient;
    mlir::Operation* const producer = gradient.d_out.source.getDefiningOp();
    if (producer != nullptr && kind(producer) == OpKind::kConvert &&
        element_type(producer->getOperand(0)) == element_type(found_.q.source)) {
      gradient.d_out.source = producer->getOperand(0);
    }
    const bool like_inputs = element_type(gradient.d_out.source) == element_type(found_.q.source);
    for (Problem* const problem : {&found_.problem, &gradient.problem}) {
      problem->out_dtype = DType::kF32;
      problem->d_out_like_inputs = like_inputs && problem->dtype != DType::kF32;
    }
  }

  // The log-sum-exp may have users before the product that the call replaces. These are moved after the call, unless
  // the call depends on them.
  Status check_order(const std::vector<mlir::Value>& captures) const {
    if (!found_.lse) {
      return {};
    }
    llvm::SmallVector<mlir::Value> sources = {found_.q.source, found_.k.source, found_.v.source};
    sources.append(captures.begin(), captures.end());
    for (const mlir::Value source : sources) {
      if (depends_on(source, found_.lse->replaced)) {
        return unsupported("a tensor that the attention reads is computed from its own log-sum-exp");
      }
    }
    return {};
  }

  Status check_operands(llvm::ArrayRef<mlir::Value> qkv) const {
    const Problem& problem = found_.problem;
    FLASHLIFT_RETURN_IF_ERROR(check_operand("q", found_.q.dims, qkv[0], problem.q_len, problem.head_dim));
    FLASHLIFT_RETURN_IF_ERROR(check_operand("k", found_.k.dims, qkv[1], problem.kv_len, problem.head_dim));
    return check_operand("v", found_.v.dims, qkv[2], problem.kv_len, problem.value_dim);
  }

  // The operation before which the forward call stands: the product that it replaces, or what follows its last operand.
  // If the module computes only the gradient, that product is one of the backward pass, and weights may have been moved
  // to values behind it.
  mlir::Operation* place_of_call() const {
    std::vector<mlir::Value> operands = {found_.q.source, found_.k.source, found_.v.source};
    operands.insert(operands.end(), found_.captures.begin(), found_.captures.end());
    for (const auto& view : {found_.sinks, found_.keep_mask}) {
      operands.push_back(view ? view->source : mlir::Value());
    }
    mlir::Operation* last = found_.second_product;
    for (const mlir::Value operand : operands) {
      last = later(last, operand);
    }
    return last == found_.second_product ? last : last->getNextNode();
  }

  llvm::SmallVector<mlir::Type> result_types() {
    llvm::SmallVector<mlir::Type> types;
    types.push_back(mlir::RankedTensorType::get(found_.out.call_shape, type_of_output()));
    if (found_.lse) {
      types.push_back(call_type(*found_.lse));
    } else if (found_.gradient) {
      const Problem& p = found_.problem;
      types.push_back(mlir::RankedTensorType::get({p.batch, p.q_heads, p.q_len}, mlir::Builder(builder_).getF32Type()));
    }
    return types;
  }

  mlir::Type type_of_output() {
    mlir::Builder builder(builder_);
    switch (found_.problem.out_dtype) {
      case DType::kBF16:
        return builder.getBF16Type();
      case DType::kF16:
        return builder.getF16Type();
      default:
        return builder.getF32Type();
    }
  }

  static mlir::Type call_type(const ResultView& result) {
    const auto replaced = mlir::cast<mlir::RankedTensorType>(result.replaced.getType());
    return mlir::RankedTensorType::get(result.call_shape, replaced.getElementType());
  }

  mlir::Value view(const OperandView& operand) {
    if (operand.constant) {
      const auto type = mlir::RankedTensorType::get(operand.reshape, builder_.getF32Type());
      const mlir::NamedAttribute number(builder_.getStringAttr("value"),
                                        mlir::DenseElementsAttr::get(type, *operand.constant));
      return build(builder_, location_, "stablehlo.constant", {}, mlir::TypeRange(type), number)->getResult(0);
    }
    mlir::Value value = operand.source;
    if (!operand.reshape.empty()) {
      value = reshape(builder_, location_, value, operand.reshape);
    }
    value = repeat(builder_, location_, value, operand.repeated);
    return transpose(builder_, location_, value, operand.permutation);
  }

  // Removes the operations that view() created, and a conversion before them.
  void remove_views(llvm::ArrayRef<mlir::Value> operands) {
    for (mlir::Value value : operands) {
      mlir::Operation* op = value.getDefiningOp();
      while (op && op->use_empty() &&
             (kind(op) == OpKind::kReshape || kind(op) == OpKind::kTranspose || kind(op) == OpKind::kConvert)) {
        mlir::Operation* next = op->getOperand(0).getDefiningOp();
        op->erase();
        op = next;
      }
    }
  }

  mlir::Value zeros(mlir::RankedTensorType type) {
    const mlir::NamedAttribute zero(builder_.getStringAttr("value"), builder_.getZeroAttr(type));
    return build(builder_, location_, "stablehlo.constant", {}, mlir::TypeRange(type), zero)->getResult(0);
  }

  // Creates the backward call behind the last of its operands. These include the forward call's operands and results.
  NewOperations backward_call(llvm::ArrayRef<mlir::Value> forward_operands, mlir::Operation* forward) {
    const LiftedGradient& gradient = *found_.gradient;
    const mlir::ValueRange forward_results = forward->getResults();
    mlir::Operation* place = later(later(found_.second_product, forward_results[0]), gradient.d_out.source);
    place = later(place, gradient.d_lse ? gradient.d_lse->source : mlir::Value());
    for (const mlir::Value capture : gradient.captures) {
      place = later(place, capture);
    }
    const mlir::OpBuilder::InsertionGuard guard(builder_);
    builder_.setInsertionPointAfter(place);
    const NewOperations added(&*builder_.getInsertionPoint());
    const mlir::Type element = element_type(forward_operands[0]);
    llvm::SmallVector<mlir::Value> operands(forward_operands.take_front(3));
    std::string positions;
    llvm::SmallVector<std::pair<unsigned, const ResultView*>> wanted;  // with the result's number
    llvm::SmallVector<mlir::Type> types;
    std::optional<size_t> last;
    const auto want = [&](size_t position, const ResultView& result, mlir::Type type) {
      if (last != position) {
        positions += (positions.empty() ? "" : " ") + std::to_string(position);
        types.push_back(mlir::RankedTensorType::get(result.call_shape, type));
        last = position;
      }
      wanted.emplace_back(types.size() - 1, &result);
    };
    for (const auto& [position, result] : {std::pair(0, &gradient.d_q), {1, &gradient.d_k}, {2, &gradient.d_v}}) {
      if (*result) {
        want(static_cast<size_t>(position), **result, element);
      }
    }
    for (size_t i = 0; i < gradient.captures.size(); ++i) {
      for (const CaptureGradient& by : gradient.d_captures) {
        if (by.capture == gradient.problem.captures[i].name) {
          want(operands.size(), by.result, builder_.getF32Type());
        }
      }
      operands.push_back(gradient.captures[i]);
    }
    if (found_.sinks) {
      for (const ResultView& result : gradient.d_sinks) {
        want(operands.size(), result, builder_.getF32Type());
      }
      operands.push_back(forward_operands[forward_operands.size() - (found_.keep_mask ? 2 : 1)]);
    }
    if (found_.keep_mask) {
      operands.push_back(forward_operands.back());
    }
    operands.append(forward_results.begin(), forward_results.end());
    const mlir::Type of_d_out = gradient.problem.d_out_like_inputs ? element : element_type(forward_results[0]);
    operands.push_back(convert(builder_, location_, view(gradient.d_out), of_d_out));
    operands.push_back(gradient.d_lse ? convert(builder_, location_, view(*gradient.d_lse), builder_.getF32Type())
                                      : zeros(mlir::cast<mlir::RankedTensorType>(forward_results[1].getType())));
    mlir::Operation* call = fused_call(builder_, location_, "flashlift.attention_backward", operands, types,
                                       configuration(builder_, found_, positions));
    for (const auto& [number, result] : wanted) {
      replace(*result, call->getResult(number));
    }
    return added;
  }

  static mlir::Type element_type(mlir::Value value) {
    return mlir::cast<mlir::RankedTensorType>(value.getType()).getElementType();
  }

  mlir::Operation* composite(mlir::ValueRange operands, mlir::TypeRange results, const std::string& function) {
    return build(builder_, location_, "stablehlo.composite", operands, results,
                 {named(builder_, "composite_attributes", configuration(builder_, found_)),
                  named(builder_, "decomposition", mlir::FlatSymbolRefAttr::get(builder_.getContext(), function)),
                  named(builder_, "name", builder_.getStringAttr("flashlift.attention")),
                  named(builder_, "version", builder_.getI32IntegerAttr(1))});
  }

  void replace(const ResultView& result, mlir::Value value) {
    if (!result.digits.empty()) {
      value = reshape(builder_, location_, value, result.digits);
    }
    value = transpose(builder_, location_, value, result.permutation);
    if (result.summed > 0) {
      value = sum(builder_, location_, convert(builder_, location_, value, builder_.getF32Type()), result.summed);
    }
    value = convert(builder_, location_, value, element_type(result.replaced));
    value =
        reshape(builder_, location_, value, mlir::cast<mlir::RankedTensorType>(result.replaced.getType()).getShape());
    mlir::Value replaced = result.replaced;
    replaced.replaceAllUsesWith(value);
  }

  struct RowDim {
    int64_t out;  // the dimension of the output
    int64_t row;  // the dimension of the log-sum-exp, not counting those of size 1
    int64_t size;
  };

  // Maps the log-sum-exp's dimensions to the output's: both have the same digits of each letter, in the same order.
  std::optional<llvm::SmallVector<RowDim>> row_dims() const {
    llvm::SmallVector<RowDim> dims;
    llvm::SmallDenseMap<char, size_t> next;
    for (const auto [i, letter] : llvm::enumerate(found_.lse->dims)) {
      if (letter == '1') {
        continue;
      }
      const size_t dim = found_.out.dims.find(letter, next.lookup(letter));
      if (dim == std::string::npos || found_.out.call_shape[dim] != found_.lse->call_shape[i]) {
        return std::nullopt;
      }
      next[letter] = dim + 1;
      dims.push_back({static_cast<int64_t>(dim), static_cast<int64_t>(dims.size()), found_.lse->call_shape[i]});
    }
    return dims;
  }

  // Makes the output NaN in rows whose log-sum-exp is -inf, by adding 0 times the log-sum-exp.
  mlir::Value with_nan_rows(mlir::ValueRange results) {
    const auto out = mlir::cast<mlir::RankedTensorType>(results[0].getType());
    const auto lse = mlir::cast<mlir::RankedTensorType>(results[1].getType());
    const mlir::Value product =
        build(builder_, location_, "stablehlo.multiply", {results[1], zeros(lse)}, lse)->getResult(0);
    llvm::SmallVector<RowDim> order = *row_dims();
    llvm::SmallVector<int64_t> row_shape;
    for (const RowDim& dim : order) {
      row_shape.push_back(dim.size);
    }
    llvm::sort(order, [](const RowDim& x, const RowDim& y) { return x.out < y.out; });
    llvm::SmallVector<int64_t> dims;
    llvm::SmallVector<int64_t> permutation;
    for (const RowDim& dim : order) {
      dims.push_back(dim.out);
      permutation.push_back(dim.row);
    }
    mlir::Value rows = reshape(builder_, location_, product, row_shape);
    rows = convert(builder_, location_, transpose(builder_, location_, rows, permutation), out.getElementType());
    const mlir::Value everywhere = build(builder_, location_, "stablehlo.broadcast_in_dim", rows, out,
                                         named(builder_, "broadcast_dimensions", builder_.getDenseI64ArrayAttr(dims)))
                                       ->getResult(0);
    return build(builder_, location_, "stablehlo.add", {results[0], everywhere}, out)->getResult(0);
  }

  // Makes the output 0 in rows of which the keep mask keeps nothing.
  mlir::Value with_zero_rows(mlir::Value out, mlir::Value keep_mask) {
    auto type = mlir::cast<mlir::RankedTensorType>(out.getType());
    mlir::Value keeps = any_of_last(builder_, location_, keep_mask);
    llvm::SmallVector<int64_t> digits;  // of those dimensions of the output that the mask has
    llvm::SmallVector<int64_t> dims;
    for (const auto [letter, size] : llvm::zip(std::string_view("bhs"), found_.keep_shape)) {
      for (size_t d = 0; size != 1 && d < found_.out.dims.size(); ++d) {
        if (found_.out.dims[d] == letter) {
          digits.push_back(type.getDimSize(static_cast<unsigned>(d)));
          dims.push_back(static_cast<int64_t>(d));
        }
      }
    }
    keeps = reshape(builder_, location_, keeps, digits);
    llvm::SmallVector<int64_t> order(dims.size());
    std::iota(order.begin(), order.end(), 0);
    llvm::sort(order,
               [&](int64_t x, int64_t y) { return dims[static_cast<size_t>(x)] < dims[static_cast<size_t>(y)]; });
    llvm::sort(dims);
    const mlir::Value everywhere = build(builder_, location_, "stablehlo.broadcast_in_dim",
                                         transpose(builder_, location_, keeps, order), type.clone(builder_.getI1Type()),
                                         named(builder_, "broadcast_dimensions", builder_.getDenseI64ArrayAttr(dims)))
                                       ->getResult(0);
    return build(builder_, location_, "stablehlo.select", {everywhere, out, zeros(type)}, type)->getResult(0);
  }

  // Sorts the operations from the first user of the new ones to the last of their operands. (The whole block may hold a
  // hundred layers.)
  static void restore_order(const NewOperations& added) {
    mlir::Block* block = added.end->getBlock();
    mlir::Operation* first = &*added.begin();
    mlir::Operation* last = added.end->getPrevNode();
    for (mlir::Operation& op : llvm::make_range(added.begin(), added.end->getIterator())) {
      for (mlir::Operation* user : op.getUsers()) {
        mlir::Operation* const holder = block->findAncestorOpInBlock(*user);
        first = holder->isBeforeInBlock(first) ? holder : first;
      }
      for (const mlir::Value operand : op.getOperands()) {
        last = later(last, operand);
      }
    }
    mlir::sortTopologically(block, llvm::make_range(first->getIterator(), std::next(last->getIterator())));
  }

  // The operation, or the one that computes the value if that comes later in the block.
  static mlir::Operation* later(mlir::Operation* op, mlir::Value value) {
    mlir::Operation* const definition = value ? value.getDefiningOp() : nullptr;
    const bool is_later = definition && definition->getBlock() == op->getBlock() && op->isBeforeInBlock(definition);
    return is_later ? definition : op;
  }

  LiftedAttention found_;
  FuseAs as_;
  mlir::Location location_;
  mlir::OpBuilder builder_;
};

}  // namespace

Status rewrite(const LiftedAttention& found, FuseAs as) { return Rewriter(found, as).run(); }

}  // namespace flashlift::stablehlo
