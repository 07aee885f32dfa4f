// Typed access to operations of a module that Module::parse has verified. Each accessor is for the kinds of operations
// that its comment names; for other kinds it returns an empty result.
#pragma once

#include <optional>
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
// The kind of the operation that defines a value; kOther for a block argument.
OpKind kind(mlir::Value value);
// The operation that defines the value, if it is of that kind, otherwise null.
mlir::Operation* defining(mlir::Value value, OpKind wanted);
// Whether the operation may be removed if it is unused: it is pure, or has regions with only such operations.
bool is_removable(mlir::Operation* op);
// One result, all operands and the result of one shape, each element computed from the same place of the operands:
// add, exponential, compare, select, convert, ... (not clamp and select with a scalar operand: those are not).
bool is_elementwise(mlir::Operation* op);

// --- Types ---

// Null if this is not a tensor of static shape.
mlir::RankedTensorType static_tensor(mlir::Type type);
inline mlir::RankedTensorType static_tensor(mlir::Value value) { return static_tensor(value.getType()); }
// The shape of a tensor of static shape, otherwise empty. A scalar's shape is empty, too: use static_tensor to
// distinguish them.
llvm::ArrayRef<int64_t> shape(mlir::Value value);
// The DType of a scalar type or a tensor's elements; nothing if Flashlift has none (f8, complex, i4, ui64, ui16).
std::optional<DType> dtype(mlir::Type type);

// The operand of an operation that returns the same number: an optimization_barrier, or a reduce_precision to no fewer
// bits than the type has. Null for all others.
mlir::Value same_number(mlir::Value result);
// The operand of a reshape, or of a broadcast_in_dim that only adds dimensions of size 1. Null for all others.
mlir::Value reshaped(mlir::Value result);

// --- Attributes, by operation ---

llvm::ArrayRef<int64_t> broadcast_dims(mlir::Operation* op);  // broadcast_in_dim
llvm::ArrayRef<int64_t> permutation(mlir::Operation* op);     // transpose: result dim i is operand dim permutation[i]
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
  CompareType type = CompareType::kFloat;  // of the element type if the operation has none
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
  kArgMaximum,  // two inputs: result 0 is the maximum of input 0, result 1 its position
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
// The computation of a block with arguments (lhs..., rhs...), as in reduce, reduce_window and all_reduce.
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

// The elements of a constant; null if the value is not a constant, or if its elements are in a resource outside of the
// text.
mlir::DenseElementsAttr constant(mlir::Value value);
// Element `index` (row-major) as a number: floats exactly, integers and booleans converted. Nothing for complex
// numbers.
std::optional<double> element_as_double(mlir::DenseElementsAttr elements, int64_t index);
std::optional<int64_t> element_as_integer(mlir::DenseElementsAttr elements, int64_t index);
// The result of stablehlo.convert for a number and these element types; nothing if the conversion is not simple.
std::optional<double> converted(double number, mlir::Type from, mlir::Type to);
// The number that all elements of a value have: a splat constant, also after broadcast_in_dim, reshape, transpose,
// slice and convert.
std::optional<double> splat(mlir::Value value);

// --- Regions ---

// Region `index`'s only block: while has cond (0) and body (1); case and if have their branches.
mlir::Block& block(mlir::Operation* op, unsigned index = 0);

}  // namespace flashlift::stablehlo
