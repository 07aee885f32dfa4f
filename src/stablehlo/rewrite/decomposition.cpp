#include "stablehlo/rewrite/decomposition.h"

#include "llvm/ADT/DenseSet.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/SymbolTable.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

// The operands of an operation, and the values that its regions read from outside.
llvm::SmallVector<mlir::Value> inputs_of(mlir::Operation* op) {
  llvm::SmallVector<mlir::Value> inputs;
  op->walk([&](mlir::Operation* inner) {
    for (mlir::Value operand : inner->getOperands()) {
      if (!op->isAncestor(operand.getParentBlock()->getParentOp()) || inner == op) {
        inputs.push_back(operand);
      }
    }
  });
  return inputs;
}

// The operations that compute some values from given ones, in the order of computation.
class Slice {
 public:
  explicit Slice(const mlir::IRMapping& given) : given_(given) {}

  // Fails if a value is neither given nor computed.
  Status add(mlir::Value wanted) {
    llvm::SmallVector<std::pair<mlir::Operation*, bool>> pending;  // and whether its inputs were visited
    FLASHLIFT_RETURN_IF_ERROR(push(wanted, pending));
    while (!pending.empty()) {
      const auto [op, ready] = pending.pop_back_val();
      if (ready) {
        order_.push_back(op);
        continue;
      }
      if (!seen_.insert(op).second) {
        continue;
      }
      pending.push_back({op, true});
      for (const mlir::Value input : inputs_of(op)) {
        FLASHLIFT_RETURN_IF_ERROR(push(input, pending));
      }
    }
    return {};
  }

  llvm::ArrayRef<mlir::Operation*> operations() const { return order_; }

 private:
  Status push(mlir::Value value, llvm::SmallVector<std::pair<mlir::Operation*, bool>>& pending) {
    if (given_.contains(value)) {
      return {};
    }
    mlir::Operation* op = value.getDefiningOp();
    if (!op || !is_removable(op)) {
      return unsupported(
          "its operations read a value that is none of its operands, so they cannot stand in a function "
          "of their own; write it as a custom_call");
    }
    if (!seen_.contains(op)) {
      pending.push_back({op, false});
    }
    return {};
  }

  const mlir::IRMapping& given_;
  llvm::DenseSet<mlir::Operation*> seen_;
  llvm::SmallVector<mlir::Operation*> order_;
};

// Converts an operand of the call to the value that it is a view of.
mlir::Value source_of(mlir::OpBuilder& builder, mlir::Location location, const OperandView& view,
                      mlir::Value argument) {
  const mlir::Value back = transpose(builder, location, argument, inverse(view.permutation));
  return reshape(builder, location, first_of(builder, location, back, view.repeated.size()),
                 mlir::cast<mlir::RankedTensorType>(view.source.getType()).getShape());
}

// Converts the value that the original computes to the call's result.
mlir::Value result_of(mlir::OpBuilder& builder, mlir::Location location, const ResultView& view, mlir::Value value) {
  const std::vector<int64_t> back = inverse(view.permutation);
  llvm::SmallVector<int64_t> shape(view.call_shape.begin(), view.call_shape.end());
  for (const auto [i, from] : llvm::enumerate(view.permutation)) {
    shape[i] = view.call_shape[static_cast<size_t>(from)];
  }
  return transpose(builder, location, reshape(builder, location, value, shape), back);
}

std::string free_name(mlir::ModuleOp module) {
  for (int i = 0;; ++i) {
    std::string name = fmt::format("flashlift.attention.impl{}", i == 0 ? "" : fmt::format("_{}", i));
    if (!mlir::SymbolTable::lookupSymbolIn(module, name)) {
      return name;
    }
  }
}

}  // namespace

Result<std::string> add_decomposition(const LiftedAttention& found, llvm::ArrayRef<mlir::Type> operand_types,
                                      llvm::ArrayRef<mlir::Type> result_types) {
  auto module = found.second_product->getParentOfType<mlir::ModuleOp>();
  const mlir::Location location = found.second_product->getLoc();
  mlir::OpBuilder builder = mlir::OpBuilder::atBlockEnd(module.getBody());
  const std::string name = free_name(module);
  auto function =
      mlir::func::FuncOp::create(builder, location, name, builder.getFunctionType(operand_types, result_types));
  function.setPrivate();
  mlir::Block* body = function.addEntryBlock();
  builder.setInsertionPointToEnd(body);

  mlir::IRMapping mapping;
  unsigned next = 0;
  const auto give = [&](const OperandView& view) {
    mapping.map(view.source, source_of(builder, location, view, body->getArgument(next++)));
  };
  give(found.q);
  give(found.k);
  give(found.v);
  for (const mlir::Value capture : found.captures) {
    mapping.map(capture, body->getArgument(next++));
  }
  if (found.sinks) {
    const mlir::Value argument = body->getArgument(next++);
    if (!found.sinks->constant) {  // the decomposition contains a constant, like the original
      std::vector<int64_t> sizes = found.sinks->repeated;
      llvm::append_range(sizes, found.sinks->reshape);
      llvm::SmallVector<int64_t> digits(sizes.begin(), sizes.end());
      for (const auto [i, from] : llvm::enumerate(found.sinks->permutation)) {
        digits[i] = sizes[static_cast<size_t>(from)];
      }
      const auto source = mlir::cast<mlir::RankedTensorType>(found.sinks->source.getType());
      const mlir::Value typed = convert(builder, location, argument, source.getElementType());
      const mlir::Value view = reshape(builder, location, typed, digits);
      mapping.map(found.sinks->source, source_of(builder, location, *found.sinks, view));
    }
  }

  if (found.keep_mask) {
    const mlir::Value argument = body->getArgument(next++);
    llvm::SmallVector<int64_t> digits(found.keep_mask->reshape.begin(), found.keep_mask->reshape.end());
    for (const auto [i, from] : llvm::enumerate(found.keep_mask->permutation)) {
      digits[i] = found.keep_mask->reshape[static_cast<size_t>(from)];
    }
    mapping.map(found.keep_mask->source,
                source_of(builder, location, *found.keep_mask, reshape(builder, location, argument, digits)));
  }

  Slice slice(mapping);
  llvm::SmallVector<const ResultView*> results = {&found.out};
  if (found.lse) {
    results.push_back(&*found.lse);
  }
  for (const ResultView* result : results) {
    if (Status status = slice.add(result->replaced); !status.ok()) {
      function.erase();
      return status.error();
    }
  }
  for (mlir::Operation* op : slice.operations()) {
    builder.clone(*op, mapping);
  }
  llvm::SmallVector<mlir::Value> returned;
  for (const ResultView* result : results) {
    returned.push_back(result_of(builder, location, *result, mapping.lookup(result->replaced)));
  }
  mlir::func::ReturnOp::create(builder, location, returned);
  return name;
}

}  // namespace flashlift::stablehlo
