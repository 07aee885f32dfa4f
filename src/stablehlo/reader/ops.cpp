#include "stablehlo/reader/ops.h"

#include <cmath>

#include "llvm/ADT/APFloat.h"
#include "mlir/IR/Block.h"
#include "mlir/IR/TypeUtilities.h"
#include "stablehlo/reader/dialect.h"

namespace flashlift::stablehlo {
namespace {

std::string_view view(llvm::StringRef text) { return {text.data(), text.size()}; }

llvm::ArrayRef<int64_t> dims(mlir::Operation* op, llvm::StringRef name) {
  const auto array = op->getAttrOfType<mlir::DenseI64ArrayAttr>(name);
  return array ? array.asArrayRef() : llvm::ArrayRef<int64_t>();
}

std::optional<int64_t> integer(mlir::Operation* op, llvm::StringRef name) {
  const auto attribute = op->getAttrOfType<mlir::IntegerAttr>(name);
  return attribute && attribute.getValue().getSignificantBits() <= 64
             ? std::optional(attribute.getValue().getSExtValue())
             : std::nullopt;
}

std::string_view text(mlir::Operation* op, llvm::StringRef name) {
  const auto opaque = op->getAttrOfType<mlir::OpaqueAttr>(name);
  return opaque ? view(opaque.getAttrData()) : std::string_view();
}

std::string_view string(mlir::Operation* op, llvm::StringRef name) {
  const auto attribute = op->getAttrOfType<mlir::StringAttr>(name);
  return attribute ? view(attribute.getValue()) : std::string_view();
}

bool flag(mlir::Operation* op, llvm::StringRef name) {
  const auto attribute = op->getAttrOfType<mlir::BoolAttr>(name);
  return attribute && attribute.getValue();
}

CompareType default_compare_type(mlir::Type element) {
  if (mlir::isa<mlir::FloatType, mlir::ComplexType>(element)) {
    return CompareType::kFloat;
  }
  return element.isUnsignedInteger() || element.isInteger(1) ? CompareType::kUnsigned : CompareType::kSigned;
}

std::optional<Reducer> simple_reducer(OpKind op) {
  switch (op) {
    case OpKind::kAdd:
      return Reducer::kAdd;
    case OpKind::kMultiply:
      return Reducer::kMultiply;
    case OpKind::kMaximum:
      return Reducer::kMaximum;
    case OpKind::kMinimum:
      return Reducer::kMinimum;
    case OpKind::kAnd:
      return Reducer::kAnd;
    case OpKind::kOr:
      return Reducer::kOr;
    case OpKind::kXor:
      return Reducer::kXor;
    default:
      return std::nullopt;
  }
}

// Whether `predicate` is true exactly if `lhs` comes before `rhs` in the direction of `greater`, apart from equal
// elements and NaN: compare GT lhs, rhs, or GE, or either of them with "or lhs != lhs" for NaN.
bool prefers_lhs(mlir::Value predicate, mlir::Value lhs, mlir::Value rhs, bool greater) {
  if (mlir::Operation* either = defining(predicate, OpKind::kOr)) {
    for (unsigned i = 0; i < 2; ++i) {
      mlir::Operation* is_nan = defining(either->getOperand(i), OpKind::kCompare);
      if (is_nan && is_nan->getOperand(0) == lhs && is_nan->getOperand(1) == lhs &&
          compare(is_nan)->direction == CompareDirection::kNe) {
        return prefers_lhs(either->getOperand(1 - i), lhs, rhs, greater);
      }
    }
    return false;
  }
  mlir::Operation* op = defining(predicate, OpKind::kCompare);
  if (op == nullptr) {
    return false;
  }
  const CompareDirection direction = compare(op)->direction;
  const bool gives_greater = direction == CompareDirection::kGt || direction == CompareDirection::kGe;
  const bool gives_less = direction == CompareDirection::kLt || direction == CompareDirection::kLe;
  if (op->getOperand(0) == lhs && op->getOperand(1) == rhs) {
    return greater ? gives_greater : gives_less;
  }
  return op->getOperand(0) == rhs && op->getOperand(1) == lhs && (greater ? gives_less : gives_greater);
}

// `value` as the maximum or minimum of two values that a select compares. If one of them is NaN, it may be either.
Reducer selecting_reducer(mlir::Value value, mlir::Value lhs, mlir::Value rhs) {
  mlir::Operation* select = defining(value, OpKind::kSelect);
  if (select && select->getOperand(1) == rhs && select->getOperand(2) == lhs) {
    std::swap(lhs, rhs);
  }
  if (!select || select->getOperand(1) != lhs || select->getOperand(2) != rhs) {
    return Reducer::kOther;
  }
  if (prefers_lhs(select->getOperand(0), lhs, rhs, /*greater=*/true)) {
    return Reducer::kMaximum;
  }
  return prefers_lhs(select->getOperand(0), lhs, rhs, /*greater=*/false) ? Reducer::kMinimum : Reducer::kOther;
}

// A reducer of values and their indices.
Reducer arg_reducer(mlir::Block& body, mlir::Operation* terminator) {
  if (body.getNumArguments() != 4 || terminator->getNumOperands() != 2) {
    return Reducer::kOther;
  }
  switch (selecting_reducer(terminator->getOperand(0), body.getArgument(0), body.getArgument(2))) {
    case Reducer::kMaximum:
      return Reducer::kArgMaximum;
    case Reducer::kMinimum:
      return Reducer::kArgMinimum;
    default:
      return Reducer::kOther;
  }
}

}  // namespace

OpKind kind(mlir::Operation* op) { return kind_of(op->getName()); }

OpKind kind(mlir::Value value) {
  mlir::Operation* op = value.getDefiningOp();
  return op ? kind(op) : OpKind::kOther;
}

mlir::Operation* defining(mlir::Value value, OpKind wanted) {
  mlir::Operation* op = value.getDefiningOp();
  return op && kind(op) == wanted ? op : nullptr;
}

bool is_removable(mlir::Operation* op) {
  const Effects effects = info(kind(op)).effects;
  if (effects != Effects::kNested) {
    return effects == Effects::kPure;
  }
  for (mlir::Region& region : op->getRegions()) {
    for (mlir::Block& each : region) {
      for (mlir::Operation& inner : each) {
        if (info(kind(&inner)).effects != Effects::kTerminator && !is_removable(&inner)) {
          return false;
        }
      }
    }
  }
  return true;
}

bool is_elementwise(mlir::Operation* op) {
  const OpKind op_kind = kind(op);
  if (op->getNumResults() != 1 || op->getNumOperands() == 0 || op->getNumRegions() != 0) {
    return false;
  }
  const bool in_range = op_kind >= OpKind::kAbs && op_kind <= OpKind::kSelect;
  const bool chlo_unary = op_kind >= OpKind::kChloAsinAcosKernel && op_kind <= OpKind::kChloZeta;
  if (!in_range && !chlo_unary) {
    return false;
  }
  const mlir::RankedTensorType result = static_tensor(op->getResult(0));
  return result && llvm::all_of(op->getOperands(), [&](mlir::Value operand) {
           const mlir::RankedTensorType type = static_tensor(operand);
           return type && type.getShape() == result.getShape();
         });
}

mlir::Value reshaped(mlir::Value value) {
  mlir::Operation* const op = value.getDefiningOp();
  const bool may_be = kind(value) == OpKind::kReshape || kind(value) == OpKind::kBroadcastInDim;
  if (!may_be || !static_tensor(value) || !static_tensor(op->getOperand(0)) ||
      static_tensor(value).getNumElements() != static_tensor(op->getOperand(0)).getNumElements()) {
    return {};
  }
  const bool in_order = kind(value) == OpKind::kReshape || llvm::is_sorted(broadcast_dims(op));
  return in_order ? op->getOperand(0) : mlir::Value();
}

mlir::Value same_number(mlir::Value result) {
  mlir::Operation* op = result.getDefiningOp();
  if (op == nullptr) {
    return nullptr;
  }
  if (kind(op) == OpKind::kOptimizationBarrier) {
    const unsigned number = llvm::cast<mlir::OpResult>(result).getResultNumber();
    return number < op->getNumOperands() ? op->getOperand(number) : nullptr;
  }
  if (kind(op) != OpKind::kReducePrecision) {
    return nullptr;
  }
  auto type = mlir::dyn_cast<mlir::FloatType>(mlir::getElementTypeOrSelf(result.getType()));
  const auto exponent = integer(op, "exponent_bits");
  const auto mantissa = integer(op, "mantissa_bits");
  if (!type || !exponent || !mantissa) {
    return nullptr;
  }
  const int own_mantissa = static_cast<int>(type.getFPMantissaWidth()) - 1;
  const int own_exponent = static_cast<int>(type.getWidth()) - 1 - own_mantissa;
  return *exponent >= own_exponent && *mantissa >= own_mantissa ? op->getOperand(0) : nullptr;
}

mlir::RankedTensorType static_tensor(mlir::Type type) {
  const auto tensor = mlir::dyn_cast<mlir::RankedTensorType>(type);
  return tensor && tensor.hasStaticShape() ? tensor : mlir::RankedTensorType();
}

llvm::ArrayRef<int64_t> shape(mlir::Value value) {
  const mlir::RankedTensorType tensor = static_tensor(value);
  return tensor ? tensor.getShape() : llvm::ArrayRef<int64_t>();
}

std::optional<DType> dtype(mlir::Type type) {
  if (const auto shaped = mlir::dyn_cast<mlir::ShapedType>(type)) {
    type = shaped.getElementType();
  }
  if (type.isF32()) {
    return DType::kF32;
  }
  if (type.isF64()) {
    return DType::kF64;
  }
  if (type.isF16()) {
    return DType::kF16;
  }
  if (type.isBF16()) {
    return DType::kBF16;
  }
  if (type.isSignlessInteger(1)) {
    return DType::kBool;
  }
  if (type.isSignlessInteger(8)) {
    return DType::kI8;
  }
  if (type.isSignlessInteger(16)) {
    return DType::kI16;
  }
  if (type.isSignlessInteger(32)) {
    return DType::kI32;
  }
  if (type.isSignlessInteger(64)) {
    return DType::kI64;
  }
  if (type.isUnsignedInteger(8)) {
    return DType::kU8;
  }
  if (type.isUnsignedInteger(32)) {
    return DType::kU32;
  }
  return std::nullopt;
}

llvm::ArrayRef<int64_t> broadcast_dims(mlir::Operation* op) { return dims(op, "broadcast_dimensions"); }
llvm::ArrayRef<int64_t> permutation(mlir::Operation* op) { return dims(op, "permutation"); }
std::optional<int64_t> iota_dim(mlir::Operation* op) { return integer(op, "iota_dimension"); }
std::optional<int64_t> concat_dim(mlir::Operation* op) {
  return kind(op) == OpKind::kConcatenate ? integer(op, "dimension") : std::nullopt;
}

std::optional<DotDims> dot_dims(mlir::Operation* op) {
  if (kind(op) == OpKind::kDot) {
    const auto lhs = mlir::cast<mlir::ShapedType>(op->getOperand(0).getType());
    return DotDims{{}, {}, {lhs.getRank() - 1}, {0}};
  }
  return parse_dot(text(op, "dot_dimension_numbers"));
}

std::optional<SliceBounds> slice_bounds(mlir::Operation* op) {
  if (kind(op) != OpKind::kSlice) {
    return std::nullopt;
  }
  return SliceBounds{dims(op, "start_indices"), dims(op, "limit_indices"), dims(op, "strides")};
}

std::optional<Padding> padding(mlir::Operation* op) {
  if (kind(op) != OpKind::kPad) {
    return std::nullopt;
  }
  return Padding{dims(op, "edge_padding_low"), dims(op, "edge_padding_high"), dims(op, "interior_padding")};
}

std::optional<Compare> compare(mlir::Operation* op) {
  static constexpr std::pair<std::string_view, CompareDirection> kDirections[] = {
      {"EQ", CompareDirection::kEq}, {"NE", CompareDirection::kNe}, {"GE", CompareDirection::kGe},
      {"GT", CompareDirection::kGt}, {"LE", CompareDirection::kLe}, {"LT", CompareDirection::kLt}};
  static constexpr std::pair<std::string_view, CompareType> kTypes[] = {{"FLOAT", CompareType::kFloat},
                                                                        {"TOTALORDER", CompareType::kTotalOrder},
                                                                        {"SIGNED", CompareType::kSigned},
                                                                        {"UNSIGNED", CompareType::kUnsigned}};
  const std::optional<std::string_view> word = parse_enum(text(op, "comparison_direction"), "comparison_direction");
  if (!word || op->getNumOperands() != 2) {
    return std::nullopt;
  }
  std::optional<Compare> found;
  for (const auto& [name, direction] : kDirections) {
    if (name == *word) {
      found = Compare{direction, default_compare_type(mlir::getElementTypeOrSelf(op->getOperand(0)))};
    }
  }
  const std::optional<std::string_view> type_word = parse_enum(text(op, "compare_type"), "comparison_type");
  for (const auto& [name, type] : kTypes) {
    if (found && type_word == name) {
      found->type = type;
    }
  }
  return found;
}

Reducer reducer(mlir::Block& body) {
  if (body.empty() || kind(&body.back()) != OpKind::kReturn) {
    return Reducer::kOther;
  }
  mlir::Operation* terminator = &body.back();
  if (body.getNumArguments() != 2 || terminator->getNumOperands() != 1) {
    return arg_reducer(body, terminator);
  }
  const mlir::Value lhs = body.getArgument(0);
  const mlir::Value rhs = body.getArgument(1);
  mlir::Operation* op = terminator->getOperand(0).getDefiningOp();
  const std::optional<Reducer> simple = op ? simple_reducer(kind(op)) : std::nullopt;
  if (!simple || op->getBlock() != &body || op->getNumOperands() != 2) {
    return selecting_reducer(terminator->getOperand(0), lhs, rhs);
  }
  const bool both =
      (op->getOperand(0) == lhs && op->getOperand(1) == rhs) || (op->getOperand(0) == rhs && op->getOperand(1) == lhs);
  return both ? *simple : Reducer::kOther;
}

std::optional<Reduction> reduction(mlir::Operation* op) {
  if (kind(op) != OpKind::kReduce) {
    return std::nullopt;
  }
  const unsigned inputs = op->getNumOperands() / 2;
  return Reduction{reducer(block(op)), dims(op, "dimensions"), op->getOperands().take_front(inputs),
                   op->getOperands().drop_front(inputs)};
}

std::optional<Gather> gather(mlir::Operation* op) {
  const std::optional<GatherDims> numbers = parse_gather(text(op, "dimension_numbers"));
  if (!numbers || kind(op) != OpKind::kGather) {
    return std::nullopt;
  }
  return Gather{*numbers, dims(op, "slice_sizes"), flag(op, "indices_are_sorted")};
}

llvm::ArrayRef<int64_t> dynamic_slice_sizes(mlir::Operation* op) { return dims(op, "slice_sizes"); }

std::optional<Composite> composite(mlir::Operation* op) {
  const auto decomposition = op->getAttrOfType<mlir::FlatSymbolRefAttr>("decomposition");
  if (kind(op) != OpKind::kComposite || !decomposition) {
    return std::nullopt;
  }
  const auto attributes = op->getAttrOfType<mlir::DictionaryAttr>("composite_attributes");
  return Composite{string(op, "name"), attributes ? attributes : mlir::DictionaryAttr::get(op->getContext()),
                   view(decomposition.getValue())};
}

std::optional<CustomCall> custom_call(mlir::Operation* op) {
  if (kind(op) != OpKind::kCustomCall) {
    return std::nullopt;
  }
  return CustomCall{string(op, "call_target_name"), op->getAttr("backend_config"),
                    integer(op, "api_version").value_or(1), flag(op, "has_side_effect")};
}

mlir::DenseElementsAttr constant(mlir::Value value) {
  mlir::Operation* op = defining(value, OpKind::kConstant);
  return op ? op->getAttrOfType<mlir::DenseElementsAttr>("value") : mlir::DenseElementsAttr();
}

std::optional<double> element_as_double(mlir::DenseElementsAttr elements, int64_t index) {
  if (mlir::isa<mlir::FloatType>(elements.getElementType())) {
    llvm::APFloat number = *(elements.value_begin<llvm::APFloat>() + index);
    bool loses_info = false;
    number.convert(llvm::APFloat::IEEEdouble(), llvm::APFloat::rmNearestTiesToEven, &loses_info);
    return number.convertToDouble();
  }
  const std::optional<int64_t> number = element_as_integer(elements, index);
  return number ? std::optional(static_cast<double>(*number)) : std::nullopt;
}

std::optional<int64_t> element_as_integer(mlir::DenseElementsAttr elements, int64_t index) {
  const auto type = mlir::dyn_cast<mlir::IntegerType>(elements.getElementType());
  if (!type) {
    return std::nullopt;
  }
  const llvm::APInt number = *(elements.value_begin<llvm::APInt>() + index);
  const bool is_unsigned = type.isUnsigned() || type.getWidth() == 1;
  if ((is_unsigned ? number.getActiveBits() > 63 : number.getSignificantBits() > 64)) {
    return std::nullopt;
  }
  return is_unsigned ? static_cast<int64_t>(number.getZExtValue()) : number.getSExtValue();
}

std::optional<double> converted(double number, mlir::Type from, mlir::Type to) {
  const auto float_type = mlir::dyn_cast<mlir::FloatType>(to);
  if (!float_type) {
    constexpr double kBelow = 0x1p31;
    const bool fits = to.isInteger() && to.getIntOrFloatBitWidth() >= 32 && from.isInteger() &&
                      std::abs(number) < kBelow && (number >= 0 || !to.isUnsignedInteger());
    return fits ? std::optional(number) : std::nullopt;
  }
  llvm::APFloat rounded(number);
  bool loses_info = false;
  rounded.convert(float_type.getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven, &loses_info);
  rounded.convert(llvm::APFloat::IEEEdouble(), llvm::APFloat::rmNearestTiesToEven, &loses_info);
  return rounded.convertToDouble();
}

std::optional<double> splat(mlir::Value value) {
  // The conversions between the use and the constant, to be applied in reverse order.
  llvm::SmallVector<std::pair<mlir::Type, mlir::Type>, 2> conversions;
  constexpr int kMaxSteps = 64;
  for (int step = 0; step < kMaxSteps; ++step) {
    if (const mlir::DenseElementsAttr elements = constant(value)) {
      std::optional<double> number =
          elements.isSplat() && !elements.empty() ? element_as_double(elements, 0) : std::nullopt;
      while (number && !conversions.empty()) {
        const auto [from, to] = conversions.pop_back_val();
        number = converted(*number, from, to);
      }
      return number;
    }
    switch (kind(value)) {
      case OpKind::kBroadcastInDim:
      case OpKind::kBroadcast:
      case OpKind::kReshape:
      case OpKind::kTranspose:
      case OpKind::kSlice:
      case OpKind::kReverse:
        break;
      case OpKind::kConvert:
        conversions.push_back(
            {mlir::getElementTypeOrSelf(value.getDefiningOp()->getOperand(0)), mlir::getElementTypeOrSelf(value)});
        break;
      default:
        return std::nullopt;
    }
    value = value.getDefiningOp()->getOperand(0);
  }
  return std::nullopt;
}

mlir::Block& block(mlir::Operation* op, unsigned index) { return op->getRegion(index).front(); }

}  // namespace flashlift::stablehlo
