#include "stablehlo/rewrite/build.h"

#include <algorithm>
#include <numeric>

#include "mlir/IR/BuiltinTypes.h"

namespace flashlift::stablehlo {
namespace {

mlir::RankedTensorType with_shape(mlir::Value value, llvm::ArrayRef<int64_t> shape) {
  return mlir::RankedTensorType::get(shape, mlir::cast<mlir::RankedTensorType>(value.getType()).getElementType());
}

// Row-major layouts of all values: dense<[2, 1, 0]> : tensor<3xindex> and so on.
mlir::ArrayAttr row_major_layouts(mlir::Builder& builder, mlir::TypeRange types) {
  llvm::SmallVector<mlir::Attribute> layouts;
  for (const mlir::Type type : types) {
    const int64_t rank = mlir::cast<mlir::RankedTensorType>(type).getRank();
    llvm::SmallVector<int64_t> order;
    for (int64_t dim = rank; dim-- > 0;) {
      order.push_back(dim);
    }
    const auto layout_type = mlir::RankedTensorType::get({rank}, builder.getIndexType());
    layouts.push_back(mlir::DenseIntElementsAttr::get(layout_type, order));
  }
  return builder.getArrayAttr(layouts);
}

}  // namespace

mlir::Value reduce(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value, llvm::ArrayRef<int64_t> dims,
                   llvm::StringRef reducer, mlir::DenseElementsAttr start) {
  const mlir::Type scalar = start.getType();
  const mlir::NamedAttribute number(builder.getStringAttr("value"), start);
  const mlir::Value init =
      build(builder, location, "stablehlo.constant", {}, mlir::TypeRange(scalar), number)->getResult(0);
  llvm::SmallVector<int64_t> kept;
  for (const auto [d, size] : llvm::enumerate(mlir::cast<mlir::RankedTensorType>(value.getType()).getShape())) {
    if (!llvm::is_contained(dims, static_cast<int64_t>(d))) {
      kept.push_back(size);
    }
  }
  const mlir::NamedAttribute dimensions(builder.getStringAttr("dimensions"), builder.getDenseI64ArrayAttr(dims));
  mlir::OperationState state(location, "stablehlo.reduce");
  state.addOperands({value, init});
  state.addTypes(with_shape(value, kept));
  state.propertiesAttr = builder.getDictionaryAttr(dimensions);
  mlir::Block* body = &state.addRegion()->emplaceBlock();
  body->addArgument(scalar, location);
  body->addArgument(scalar, location);
  mlir::OpBuilder inside(builder.getContext());  // atBlockEnd would use the block's operation, which does not exist yet
  inside.setInsertionPointToEnd(body);
  mlir::Operation* result = build(inside, location, reducer, body->getArguments(), mlir::TypeRange(scalar));
  build(inside, location, "stablehlo.return", result->getResults(), {});
  return builder.create(state)->getResult(0);
}

mlir::Operation* build(mlir::OpBuilder& builder, mlir::Location location, llvm::StringRef name,
                       mlir::ValueRange operands, mlir::TypeRange results,
                       llvm::ArrayRef<mlir::NamedAttribute> attributes) {
  mlir::OperationState state(location, name);
  state.addOperands(operands);
  state.addTypes(results);
  if (!attributes.empty()) {
    state.propertiesAttr = builder.getDictionaryAttr(attributes);
  }
  return builder.create(state);
}

mlir::Operation* fused_call(mlir::OpBuilder& builder, mlir::Location location, llvm::StringRef target,
                            mlir::ValueRange operands, mlir::TypeRange results, mlir::DictionaryAttr config) {
  const auto named = [&](llvm::StringRef name, mlir::Attribute value) {
    return mlir::NamedAttribute(builder.getStringAttr(name), value);
  };
  return build(
      builder, location, "stablehlo.custom_call", operands, results,
      {named("api_version", builder.getI32IntegerAttr(4)), named("backend_config", config),
       named("call_target_name", builder.getStringAttr(target)), named("has_side_effect", builder.getBoolAttr(false)),
       named("operand_layouts", row_major_layouts(builder, operands.getTypes())),
       named("result_layouts", row_major_layouts(builder, results))});
}

mlir::Value reshape(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value,
                    llvm::ArrayRef<int64_t> shape) {
  const mlir::RankedTensorType type = with_shape(value, shape);
  return type == value.getType()
             ? value
             : build(builder, location, "stablehlo.reshape", value, mlir::TypeRange(type))->getResult(0);
}

mlir::Value repeat(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value,
                   llvm::ArrayRef<int64_t> sizes) {
  if (sizes.empty()) {
    return value;
  }
  const llvm::ArrayRef<int64_t> shape = mlir::cast<mlir::RankedTensorType>(value.getType()).getShape();
  llvm::SmallVector<int64_t> dims(shape.size());
  std::iota(dims.begin(), dims.end(), static_cast<int64_t>(sizes.size()));
  llvm::SmallVector<int64_t> whole(sizes);
  whole.append(shape.begin(), shape.end());
  const mlir::NamedAttribute places(builder.getStringAttr("broadcast_dimensions"), builder.getDenseI64ArrayAttr(dims));
  return build(builder, location, "stablehlo.broadcast_in_dim", value, mlir::TypeRange(with_shape(value, whole)),
               places)
      ->getResult(0);
}

mlir::Value first_of(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value, size_t dims) {
  if (dims == 0) {
    return value;
  }
  const llvm::ArrayRef<int64_t> shape = mlir::cast<mlir::RankedTensorType>(value.getType()).getShape();
  const llvm::SmallVector<int64_t> start(shape.size(), 0);
  const llvm::SmallVector<int64_t> strides(shape.size(), 1);
  llvm::SmallVector<int64_t> limit(shape);
  std::fill_n(limit.begin(), dims, 1);
  const auto named = [&](llvm::StringRef name, llvm::ArrayRef<int64_t> numbers) {
    return mlir::NamedAttribute(builder.getStringAttr(name), builder.getDenseI64ArrayAttr(numbers));
  };
  return build(builder, location, "stablehlo.slice", value, mlir::TypeRange(with_shape(value, limit)),
               {named("start_indices", start), named("limit_indices", limit), named("strides", strides)})
      ->getResult(0);
}

mlir::Value transpose(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value,
                      llvm::ArrayRef<int64_t> permutation) {
  bool identity = true;
  llvm::SmallVector<int64_t> shape;
  for (const auto [i, from] : llvm::enumerate(permutation)) {
    identity = identity && static_cast<int64_t>(i) == from;
    shape.push_back(mlir::cast<mlir::RankedTensorType>(value.getType()).getDimSize(static_cast<unsigned>(from)));
  }
  if (identity) {
    return value;
  }
  const mlir::NamedAttribute order(builder.getStringAttr("permutation"), builder.getDenseI64ArrayAttr(permutation));
  return build(builder, location, "stablehlo.transpose", value, mlir::TypeRange(with_shape(value, shape)), order)
      ->getResult(0);
}

mlir::Value convert(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value, mlir::Type element_type) {
  auto type = mlir::cast<mlir::RankedTensorType>(value.getType());
  return type.getElementType() == element_type
             ? value
             : build(builder, location, "stablehlo.convert", value, mlir::TypeRange(type.clone(element_type)))
                   ->getResult(0);
}

mlir::Value sum(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value, size_t dims) {
  llvm::SmallVector<int64_t> summed(dims);
  std::iota(summed.begin(), summed.end(), 0);
  const mlir::RankedTensorType scalar = mlir::RankedTensorType::get({}, builder.getF32Type());
  return reduce(builder, location, value, summed, "stablehlo.add", mlir::DenseElementsAttr::get(scalar, 0.0f));
}

mlir::Value any_of_last(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value) {
  const int64_t last = mlir::cast<mlir::RankedTensorType>(value.getType()).getRank() - 1;
  const mlir::RankedTensorType scalar = mlir::RankedTensorType::get({}, builder.getI1Type());
  return reduce(builder, location, value, last, "stablehlo.or", mlir::DenseElementsAttr::get(scalar, false));
}

std::vector<int64_t> inverse(llvm::ArrayRef<int64_t> permutation) {
  std::vector<int64_t> back(permutation.size());
  for (const auto [i, from] : llvm::enumerate(permutation)) {
    back[static_cast<size_t>(from)] = static_cast<int64_t>(i);
  }
  return back;
}

}  // namespace flashlift::stablehlo
