// Creates StableHLO operations.
#pragma once

#include "llvm/ADT/ArrayRef.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Operation.h"

namespace flashlift::stablehlo {

// Creates an operation with its own attributes, e.g. build(builder, at, "stablehlo.reshape", {x}, {type}).
mlir::Operation* build(mlir::OpBuilder& builder, mlir::Location location, llvm::StringRef name,
                       mlir::ValueRange operands, mlir::TypeRange results,
                       llvm::ArrayRef<mlir::NamedAttribute> attributes = {});

// Creates Flashlift's custom call: typed FFI, all values in row-major order.
mlir::Operation* fused_call(mlir::OpBuilder& builder, mlir::Location location, llvm::StringRef target,
                            mlir::ValueRange operands, mlir::TypeRange results, mlir::DictionaryAttr config);

// Returns the value itself if it already has this shape.
mlir::Value reshape(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value,
                    llvm::ArrayRef<int64_t> shape);
// Broadcasts to new first dimensions of these sizes. Returns the value itself if there are none.
mlir::Value repeat(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value, llvm::ArrayRef<int64_t> sizes);
// The value at the first index of its first dimensions, which keep size 1. Returns the value itself if there are none.
mlir::Value first_of(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value, size_t dims);
// Result dimension i is dimension permutation[i]. An empty permutation is the identity.
mlir::Value transpose(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value,
                      llvm::ArrayRef<int64_t> permutation);

// Converts to another element type.
mlir::Value convert(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value, mlir::Type element_type);

// Reduces a value over these dimensions, in ascending order, with an operation such as "stablehlo.add".
mlir::Value reduce(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value, llvm::ArrayRef<int64_t> dims,
                   llvm::StringRef reducer, mlir::DenseElementsAttr start);
// Sums an f32 value over its first dimensions.
mlir::Value sum(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value, size_t dims);
// Whether any of the booleans is true along the last dimension.
mlir::Value any_of_last(mlir::OpBuilder& builder, mlir::Location location, mlir::Value value);

// The inverse permutation; empty for empty.
std::vector<int64_t> inverse(llvm::ArrayRef<int64_t> permutation);

}  // namespace flashlift::stablehlo
