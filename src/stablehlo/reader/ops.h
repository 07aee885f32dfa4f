// Typed access to operations of a module that Module::parse has verified. Each accessor is for the kinds of operation
// that its comment names; on another kind it gives an empty result.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "flashlift/tensor.h"
#include "llvm/ADT/ArrayRef.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Operation.h"
#include "stablehlo/reader/attributes.h"
#include "stablehlo/reader/op_table.h"

namespace flashlift::stablehlo {

// --- Which operation ---

OpKind kind(mlir::Operation* op);
// Of the operation that defines a value; kOther for a block argument.
OpKind kind(mlir::Value value);
// The operation that defines the value, if it is of that kind, otherwise null.
mlir::Operation* defining(mlir::Value value, OpKind wanted);
// May be removed when unused: pure, or with regions that hold only such operations.
bool is_removable(mlir::Operation* op);
// One result, all operands and the result of one shape, each element computed from the same place of the operands:
// add, exponential, compare, select, convert, ... (not clamp and select with a scalar operand: those are not).
bool is_elementwise(mlir::Operation* op);

// --- Types ---

// Null for what is no tensor of static shape.
mlir::RankedTensorType static_tensor(mlir::Type type);
inline mlir::RankedTensorType static_tensor(mlir::Value value) { return static_tensor(value.getType()); }
// Of a tensor of static shape, otherwise empty. A scalar's shape is empty, too: use static_tensor to tell.
llvm::ArrayRef<int64_t> shape(mlir::Value value);
// Of a scalar type or a tensor's elements; nothing for types that Flashlift has none for (f8, complex, i4, ui64, ui16).
std::optional<DType> dtype(mlir::Type type);

// What a result is, number for number: the operand of an optimization_barrier, or of a reduce_precision to no fewer
// bits than the type has. Null for all others.
mlir::Value same_number(mlir::Value result);

// --- Attributes, by operation ---

llvm::ArrayRef<int64_t> broadcast_dims(mlir::Operation* op);  // broadcast_in_dim
llvm::ArrayRef<int64_t> permutation(mlir::Operation* op);     // transpose: result dim i is operand dim permutation[i]
llvm::ArrayRef<int64_t> reverse_dims(mlir::Operation* op);    // reverse
std::optional<int64_t> iota_dim(mlir::Operation* op);         // iota
std::optional<int64_t> concat_dim(mlir::Operation* op);       // concatenate
std::optional<DotDims> dot_dims(mlir::Operation* op);         // dot_general, and dot (which has no batch)

struct SliceBounds {
  llvm::ArrayRef<int64_t> start, limit, stride;
};
std::optional<SliceBounds> slice_bounds(mlir::Operation* op);  // slice

struct Padding {
  llvm::ArrayRef<int64_t> low, high, interior;  // low and high may be negative
};
std::optional<Padding> padding(mlir::Operation* op);  // pad: operand 0, padding value operand 1

enum class CompareDirection : uint8_t { kEq, kNe, kGe, kGt, kLe, kLt };
enum class CompareType : uint8_t { kFloat, kTotalOrder, kSigned, kUnsigned };
struct Compare {
  CompareDirection direction = CompareDirection::kEq;
  CompareType type = CompareType::kFloat;  // from the element type where the operation does not say
};
std::optional<Compare> compare(mlir::Operation* op);  // compare

enum class Reducer : uint8_t {
  kAdd,
  kMultiply,
  kMaximum,
  kMinimum,
  kAnd,
  kOr,
  kXor,
  kArgMaximum,  // two inputs: result 0 is the maximum of input 0, result 1 where it stands
  kArgMinimum,
  kOther,
};
struct Reduction {
  Reducer reducer = Reducer::kOther;
  llvm::ArrayRef<int64_t> dims;
  mlir::ValueRange inputs;
  mlir::ValueRange inits;
};
std::optional<Reduction> reduction(mlir::Operation* op);  // reduce
// What one block of arguments (lhs..., rhs...) computes: of reduce, reduce_window, all_reduce, ...
Reducer reducer(mlir::Block& body);

struct Gather {
  GatherDims dims;
  llvm::ArrayRef<int64_t> slice_sizes;
  bool indices_are_sorted = false;
};
std::optional<Gather> gather(mlir::Operation* op);  // gather: operand 0, start indices operand 1

llvm::ArrayRef<int64_t> dynamic_slice_sizes(mlir::Operation* op);  // dynamic_slice: operand 0, starts from operand 1

struct Composite {
  std::string_view name;
  mlir::DictionaryAttr attributes;  // composite_attributes; never null
  std::string_view decomposition;   // a function's name
};
std::optional<Composite> composite(mlir::Operation* op);  // composite

struct CustomCall {
  std::string_view target;
  mlir::Attribute backend_config;  // a string, a dictionary or null
  int64_t api_version = 1;
  bool has_side_effect = false;
};
std::optional<CustomCall> custom_call(mlir::Operation* op);  // custom_call

// --- Constants ---

// The elements of a constant; null if the value is none, or if its elements lie in a resource outside the text.
mlir::DenseElementsAttr constant(mlir::Value value);
// Element `index` (row-major) as a number: floats exactly, integers and booleans converted. Nothing for complex
// numbers.
std::optional<double> element_as_double(mlir::DenseElementsAttr elements, int64_t index);
std::optional<int64_t> element_as_integer(mlir::DenseElementsAttr elements, int64_t index);
// What stablehlo.convert makes of a number of one element type in another; nothing where that needs more thought than a
// splat deserves.
std::optional<double> converted(double number, mlir::Type from, mlir::Type to);
// The one number of a value that is the same everywhere: a splat constant, also behind broadcast_in_dim, reshape,
// transpose, slice and convert.
std::optional<double> splat(mlir::Value value);

// --- Regions ---

// Region `index`'s only block: while has cond (0) and body (1); case and if have their branches.
mlir::Block& block(mlir::Operation* op, unsigned index = 0);

}  // namespace flashlift::stablehlo
