#include "stablehlo/rearrange/builder.h"

#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"

namespace flashlift::stablehlo {

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

mlir::Value Builder::like(mlir::Operation* op, mlir::ValueRange operands, mlir::Type type) {
  mlir::OperationState state(op->getLoc(), op->getName().getStringRef());
  state.addOperands(operands);
  state.addTypes(type);
  state.propertiesAttr = op->getPropertiesAsAttribute();
  mlir::Operation* made = builder_.create(state);
  made->setDiscardableAttrs(op->getDiscardableAttrDictionary());
  return note(made);
}

mlir::Value Builder::copy(mlir::Operation* op, mlir::ValueRange operands) {
  mlir::Operation* made = builder_.clone(*op);
  made->setOperands(operands);
  return note(made);
}

mlir::Value Builder::concatenate(mlir::Location location, mlir::Value x, mlir::Value y, int64_t dim) {
  const mlir::NamedAttribute dimension(builder_.getStringAttr("dimension"), builder_.getI64IntegerAttr(dim));
  return note(build(builder_, location, "stablehlo.concatenate", {x, y},
                    mlir::TypeRange(with_size(x, dim, size_of(x, dim) + size_of(y, dim))), dimension));
}

mlir::Value Builder::broadcast(mlir::Location location, mlir::Value value, mlir::RankedTensorType type,
                               llvm::ArrayRef<int64_t> dims) {
  const mlir::NamedAttribute to(builder_.getStringAttr("broadcast_dimensions"), builder_.getDenseI64ArrayAttr(dims));
  return note(build(builder_, location, "stablehlo.broadcast_in_dim", value, mlir::TypeRange(type), to));
}

mlir::Value Builder::constant(mlir::Location location, mlir::DenseElementsAttr elements) {
  const mlir::NamedAttribute number(builder_.getStringAttr("value"), elements);
  return note(build(builder_, location, "stablehlo.constant", {}, mlir::TypeRange(elements.getType()), number));
}

mlir::Value Builder::slice(mlir::Location location, mlir::Value value, int64_t dim, int64_t start, int64_t limit) {
  llvm::SmallVector<int64_t> starts(shape(value).size(), 0);
  llvm::SmallVector<int64_t> limits(shape(value));
  const llvm::SmallVector<int64_t> strides(shape(value).size(), 1);
  starts[static_cast<size_t>(dim)] = start;
  limits[static_cast<size_t>(dim)] = limit;
  const auto named = [&](llvm::StringRef name, llvm::ArrayRef<int64_t> numbers) {
    return mlir::NamedAttribute(builder_.getStringAttr(name), builder_.getDenseI64ArrayAttr(numbers));
  };
  return note(build(builder_, location, "stablehlo.slice", value, mlir::TypeRange(with_size(value, dim, limit - start)),
                    {named("start_indices", starts), named("limit_indices", limits), named("strides", strides)}));
}

mlir::Value Builder::add(mlir::Location location, mlir::Value x, mlir::Value y) {
  return note(build(builder_, location, "stablehlo.add", {x, y}, mlir::TypeRange(x.getType())));
}

mlir::Value Builder::multiply(mlir::Location location, mlir::Value x, mlir::Value y) {
  return note(build(builder_, location, "stablehlo.multiply", {x, y}, mlir::TypeRange(x.getType())));
}

mlir::Value Builder::select(mlir::Location location, mlir::Value condition, mlir::Value x, mlir::Value y) {
  return note(build(builder_, location, "stablehlo.select", {condition, x, y}, mlir::TypeRange(x.getType())));
}

mlir::Value Builder::reshape(mlir::Location location, mlir::Value value, llvm::ArrayRef<int64_t> dims) {
  const mlir::Value made = stablehlo::reshape(builder_, location, value, dims);
  return made == value ? made : note(made.getDefiningOp());
}

mlir::Value Builder::transpose(mlir::Location location, mlir::Value value, llvm::ArrayRef<int64_t> permutation) {
  const mlir::Value made = stablehlo::transpose(builder_, location, value, permutation);
  return made == value ? made : note(made.getDefiningOp());
}

mlir::Value Builder::dot(mlir::Location location, mlir::Value x, mlir::Value y, const DotDims& dims, mlir::Type type) {
  const auto text = mlir::OpaqueAttr::get(builder_.getStringAttr("stablehlo"), print_dot(dims),
                                          mlir::NoneType::get(builder_.getContext()));
  const mlir::NamedAttribute numbers(builder_.getStringAttr("dot_dimension_numbers"), text);
  return note(build(builder_, location, "stablehlo.dot_general", {x, y}, mlir::TypeRange(type), numbers));
}

mlir::Value Builder::convert(mlir::Location location, mlir::Value value, mlir::Type element_type) {
  const mlir::Value made = stablehlo::convert(builder_, location, value, element_type);
  return made == value ? made : note(made.getDefiningOp());
}

mlir::Value Builder::sum(mlir::Location location, mlir::Value value, llvm::ArrayRef<int64_t> dims) {
  const auto zero = mlir::DenseElementsAttr::get(mlir::RankedTensorType::get({}, builder_.getF32Type()), 0.0f);
  return reduce(location, value, dims, "stablehlo.add", zero);
}

mlir::Value Builder::reduce(mlir::Location location, mlir::Value value, llvm::ArrayRef<int64_t> dims,
                            llvm::StringRef reducer, mlir::DenseElementsAttr start) {
  return note_with_start(stablehlo::reduce(builder_, location, value, dims, reducer, start));
}

mlir::Value Builder::note_with_start(mlir::Value reduced) {
  note(reduced.getDefiningOp()->getOperand(1).getDefiningOp());
  return note(reduced.getDefiningOp());
}

mlir::Value Builder::note(mlir::Operation* op) {
  added_.push_back(op);
  return op->getResult(0);
}

void replace(Rearrangement& rearrangement, mlir::Value original, mlir::Value result) {
  original.replaceAllUsesWith(result);
  rearrangement.replaced.push_back({original, result});
}

bool is_read_elsewhere(const Rearrangement& rearrangement) {
  return llvm::any_of(rearrangement.added, [&](mlir::Operation* op) {
    const bool is_result = llvm::any_of(
        rearrangement.replaced, [&](const auto& each) { return mlir::Value(each.result).getDefiningOp() == op; });
    return !is_result && llvm::any_of(op->getUsers(), [&](mlir::Operation* user) {
      return !llvm::is_contained(rearrangement.added, user);
    });
  });
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
