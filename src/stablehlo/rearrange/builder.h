// Creates the operations of a rearrangement, so that they can be removed again.
#pragma once

#include <vector>

#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/reader/attributes.h"
#include "stablehlo/rearrange/rearrange.h"

namespace flashlift::stablehlo {

// The value's type with another size of one dimension.
mlir::RankedTensorType with_size(mlir::Value value, int64_t dim, int64_t size);
int64_t size_of(mlir::Value value, int64_t dim);

// Whether operations have the same name and properties.
bool have_equal_attributes(mlir::Operation* x, mlir::Operation* y);

// Creates operations before another one, and records them.
class Builder {
 public:
  Builder(mlir::Operation* before, std::vector<mlir::Operation*>& added) : builder_(before), added_(added) {}

  // Creates a copy of an operation with other operands and another type.
  mlir::Value like(mlir::Operation* op, mlir::ValueRange operands, mlir::Type type);
  // The same with regions.
  mlir::Value copy(mlir::Operation* op, mlir::ValueRange operands);
  mlir::Value concatenate(mlir::Location location, mlir::Value x, mlir::Value y, int64_t dim);
  mlir::Value broadcast(mlir::Location location, mlir::Value value, mlir::RankedTensorType type,
                        llvm::ArrayRef<int64_t> dims);
  mlir::Value constant(mlir::Location location, mlir::DenseElementsAttr elements);
  // The part of a value from `start` to `limit` in one dimension.
  mlir::Value slice(mlir::Location location, mlir::Value value, int64_t dim, int64_t start, int64_t limit);
  mlir::Value add(mlir::Location location, mlir::Value x, mlir::Value y);
  mlir::Value multiply(mlir::Location location, mlir::Value x, mlir::Value y);
  mlir::Value select(mlir::Location location, mlir::Value condition, mlir::Value x, mlir::Value y);
  mlir::Value reshape(mlir::Location location, mlir::Value value, llvm::ArrayRef<int64_t> dims);
  mlir::Value transpose(mlir::Location location, mlir::Value value, llvm::ArrayRef<int64_t> permutation);
  mlir::Value dot(mlir::Location location, mlir::Value x, mlir::Value y, const DotDims& dims, mlir::Type type);
  mlir::Value convert(mlir::Location location, mlir::Value value, mlir::Type element_type);
  // Reduces a value over these dimensions, in ascending order, with an operation such as "stablehlo.add".
  mlir::Value reduce(mlir::Location location, mlir::Value value, llvm::ArrayRef<int64_t> dims, llvm::StringRef reducer,
                     mlir::DenseElementsAttr start);
  // Sums an f32 value over these dimensions, in ascending order.
  mlir::Value sum(mlir::Location location, mlir::Value value, llvm::ArrayRef<int64_t> dims);

 private:
  mlir::Value note(mlir::Operation* op);
  mlir::Value note_with_start(mlir::Value reduced);  // and the constant from which it starts

  mlir::OpBuilder builder_;
  std::vector<mlir::Operation*>& added_;
};

// Replaces all uses of a value by another one, and records them.
void replace(Rearrangement& rearrangement, mlir::Value original, mlir::Value result);

}  // namespace flashlift::stablehlo
