#include "stablehlo/reader/verify_op.h"

#include "mlir/IR/Block.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"
#include "support/counted.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

using Dims = llvm::ArrayRef<int64_t>;

std::string text(mlir::Type type) {
  std::string out;
  llvm::raw_string_ostream(out) << type;
  return out;
}

// Whether two sizes are equal, if both are known.
bool compatible(int64_t a, int64_t b) {
  return a == b || mlir::ShapedType::isDynamic(a) || mlir::ShapedType::isDynamic(b);
}

bool compatible(Dims a, Dims b) {
  return a.size() == b.size() &&
         llvm::all_of(llvm::zip(a, b), [](auto pair) { return compatible(std::get<0>(pair), std::get<1>(pair)); });
}

// Whether these are valid indices of `rank` dimensions without duplicates.
bool is_subset(Dims dims, int64_t rank) {
  std::vector<bool> seen(static_cast<size_t>(rank));
  for (const int64_t dim : dims) {
    if (dim < 0 || dim >= rank || seen[static_cast<size_t>(dim)]) {
      return false;
    }
    seen[static_cast<size_t>(dim)] = true;
  }
  return true;
}

class OpCheck {
 public:
  OpCheck(mlir::Operation* op, const OpInfo& info) : op_(op), info_(info) {}

  Status run() {
    FLASHLIFT_RETURN_IF_ERROR(check_counts());
    if (is_plain_elementwise()) {
      return check_elementwise();
    }
    switch (info_.kind) {
      case OpKind::kConstant:
        return check_constant();
      case OpKind::kIota:
        return check_iota();
      case OpKind::kCompare:
        return check_compare();
      case OpKind::kSelect:
        return check_select();
      case OpKind::kReshape:
        return check_reshape();
      case OpKind::kBroadcastInDim:
        return check_broadcast();
      case OpKind::kTranspose:
        return check_transpose();
      case OpKind::kReverse:
        return check_reverse();
      case OpKind::kSlice:
        return check_slice();
      case OpKind::kDynamicSlice:
        return check_dynamic_slice();
      case OpKind::kDynamicUpdateSlice:
        return check_dynamic_update_slice();
      case OpKind::kConcatenate:
        return check_concatenate();
      case OpKind::kPad:
        return check_pad();
      case OpKind::kDot:
      case OpKind::kDotGeneral:
        return check_dot();
      case OpKind::kGather:
        return check_gather();
      case OpKind::kReduce:
        return check_reduce();
      case OpKind::kWhile:
        return check_while();
      case OpKind::kIf:
        return check_branches(2);
      case OpKind::kCase:
        return check_branches(-1);
      case OpKind::kOptimizationBarrier:
        return check_barrier();
      case OpKind::kComposite:
        return check_composite();
      default:
        return {};
    }
  }

 private:
  template <typename... Args>
  Error error(fmt::format_string<Args...> format, Args&&... args) const {
    return invalid_argument("{}: '{}': {}", describe(op_->getLoc()), info_.name,
                            fmt::format(format, std::forward<Args>(args)...));
  }

  mlir::RankedTensorType operand(unsigned i) const {
    return mlir::dyn_cast<mlir::RankedTensorType>(op_->getOperand(i).getType());
  }
  mlir::RankedTensorType result(unsigned i = 0) const {
    return mlir::dyn_cast<mlir::RankedTensorType>(op_->getResult(i).getType());
  }
  std::optional<Dims> dims(llvm::StringRef name) const {
    const auto array = op_->getAttrOfType<mlir::DenseI64ArrayAttr>(name);
    return array ? std::optional(array.asArrayRef()) : std::nullopt;
  }
  Error missing(std::string_view name) const { return error("expected the attribute '{}' as array<i64: ...>", name); }

  bool is_plain_elementwise() const {
    return (info_.kind >= OpKind::kAbs && info_.kind <= OpKind::kXor) ||
           (info_.kind >= OpKind::kChloAsinAcosKernel && info_.kind <= OpKind::kChloZeta);
  }

  // Checks the number of operands, and that tensors have a rank where the accessors require one.
  Status check_counts() const {
    if (info_.operands >= 0 && static_cast<int>(op_->getNumOperands()) != info_.operands) {
      return error("expected {}, got {}", counted(info_.operands, "operand"), op_->getNumOperands());
    }
    const bool one_result = is_plain_elementwise() || (info_.kind >= OpKind::kCompare && info_.kind <= OpKind::kIota) ||
                            (info_.kind >= OpKind::kBitcastConvert && info_.kind <= OpKind::kDynamicGather) ||
                            info_.kind == OpKind::kDot || info_.kind == OpKind::kDotGeneral;
    if (info_.kind == OpKind::kSdyShardingConstraint || info_.kind == OpKind::kSdyReshard) {
      return op_->getResultTypes() == op_->getOperandTypes()
                 ? Status()
                 : error("expected one result of its operand's type, {}", text(op_->getOperand(0).getType()));
    }
    if (!one_result) {
      return {};
    }
    if (op_->getNumResults() != 1) {
      return error("expected one result, got {}", op_->getNumResults());
    }
    if (!result()) {
      return error("expected a ranked tensor as result, got {}", text(op_->getResult(0).getType()));
    }
    for (unsigned i = 0; i < op_->getNumOperands(); ++i) {
      if (!operand(i)) {
        return error("expected a ranked tensor as operand {}, got {}", i, text(op_->getOperand(i).getType()));
      }
    }
    return {};
  }

  Status check_elementwise() const {
    for (unsigned i = 0; i < op_->getNumOperands(); ++i) {
      if (!compatible(operand(i).getShape(), result().getShape())) {
        return error("expected operands and result of one shape, got {} and {}", text(operand(i)), text(result()));
      }
    }
    return {};
  }

  Status check_constant() const {
    const auto value = op_->getAttrOfType<mlir::ElementsAttr>("value");
    if (!value) {
      return error("expected the attribute 'value' with the elements of a tensor");
    }
    const auto type = mlir::dyn_cast<mlir::RankedTensorType>(value.getType());
    if (!type || type.getShape() != result().getShape()) {
      return error("expected elements of the result's shape, got {} for {}", text(value.getType()), text(result()));
    }
    return {};
  }

  Status check_iota() const {
    const std::optional<int64_t> dim = iota_dim(op_);
    if (!dim || *dim < 0 || *dim >= result().getRank()) {
      return error("expected 'iota_dimension' to be a dimension of the result {}", text(result()));
    }
    return {};
  }

  Status check_compare() const {
    FLASHLIFT_RETURN_IF_ERROR(check_elementwise());
    if (!compare(op_)) {
      return error("expected 'comparison_direction' EQ, NE, GE, GT, LE or LT");
    }
    return {};
  }

  Status check_select() const {
    for (unsigned i = 0; i < 3; ++i) {
      const bool scalar_predicate = i == 0 && operand(0).getRank() == 0;
      if (!scalar_predicate && !compatible(operand(i).getShape(), result().getShape())) {
        return error("expected operands and result of one shape, got {} and {}", text(operand(i)), text(result()));
      }
    }
    return {};
  }

  Status check_reshape() const {
    if (operand(0).hasStaticShape() && result().hasStaticShape() &&
        operand(0).getNumElements() != result().getNumElements()) {
      return error("expected as many elements in the result as in the operand, got {} and {}", text(operand(0)),
                   text(result()));
    }
    return {};
  }

  Status check_broadcast() const {
    const std::optional<Dims> to = dims("broadcast_dimensions");
    if (!to) {
      return missing("broadcast_dimensions");
    }
    if (static_cast<int64_t>(to->size()) != operand(0).getRank() || !is_subset(*to, result().getRank())) {
      return error("expected 'broadcast_dimensions' to name one dimension of {} for each of {}", text(result()),
                   text(operand(0)));
    }
    for (const auto [from, dim] : llvm::enumerate(*to)) {
      const int64_t size = operand(0).getDimSize(static_cast<unsigned>(from));
      if (size != 1 && !compatible(size, result().getDimSize(static_cast<unsigned>(dim)))) {
        return error("dimension {} of {} does not fit dimension {} of {}", from, text(operand(0)), dim, text(result()));
      }
    }
    return {};
  }

  Status check_transpose() const {
    const std::optional<Dims> order = dims("permutation");
    if (!order) {
      return missing("permutation");
    }
    const int64_t rank = operand(0).getRank();
    bool fits = static_cast<int64_t>(order->size()) == rank && result().getRank() == rank && is_subset(*order, rank);
    for (int64_t i = 0; fits && i < rank; ++i) {
      fits = compatible(result().getDimSize(static_cast<unsigned>(i)),
                        operand(0).getDimSize(static_cast<unsigned>((*order)[static_cast<size_t>(i)])));
    }
    return fits ? Status()
                : Status(error("the permutation does not lead from {} to {}", text(operand(0)), text(result())));
  }

  Status check_reverse() const {
    const std::optional<Dims> which = dims("dimensions");
    if (!which || !is_subset(*which, operand(0).getRank())) {
      return error("expected 'dimensions' to name dimensions of {}", text(operand(0)));
    }
    return check_elementwise();
  }

  Status check_slice() const {
    const std::optional<Dims> start = dims("start_indices"), limit = dims("limit_indices"), stride = dims("strides");
    const auto rank = static_cast<size_t>(operand(0).getRank());
    bool fits = start && limit && stride && start->size() == rank && limit->size() == rank && stride->size() == rank &&
                static_cast<size_t>(result().getRank()) == rank;
    for (unsigned i = 0; fits && i < rank; ++i) {
      const int64_t from = (*start)[i], to = (*limit)[i], step = (*stride)[i], size = operand(0).getDimSize(i);
      fits = from >= 0 && from <= to && step > 0 && (to <= size || mlir::ShapedType::isDynamic(size)) &&
             compatible(result().getDimSize(i), (to - from) / step + ((to - from) % step != 0 ? 1 : 0));
    }
    return fits ? Status() : Status(error("the bounds do not lead from {} to {}", text(operand(0)), text(result())));
  }

  Status check_starts(unsigned first) const {
    const int64_t rank = operand(0).getRank();
    bool fits = static_cast<int64_t>(op_->getNumOperands() - first) == rank;
    for (unsigned i = first; fits && i < op_->getNumOperands(); ++i) {
      fits = operand(i).getRank() == 0 && operand(i).getElementType().isInteger();
    }
    return fits ? Status() : Status(error("expected {} scalar integers as start indices", rank));
  }

  Status check_dynamic_slice() const {
    if (op_->getNumOperands() == 0) {
      return error("expected an operand");
    }
    FLASHLIFT_RETURN_IF_ERROR(check_starts(1));
    const std::optional<Dims> sizes = dims("slice_sizes");
    if (!sizes || !compatible(*sizes, result().getShape()) || !fits_inside(*sizes, operand(0))) {
      return error("expected 'slice_sizes' to be the result's sizes and to fit into {}", text(operand(0)));
    }
    return {};
  }

  Status check_dynamic_update_slice() const {
    if (op_->getNumOperands() < 2) {
      return error("expected at least two operands");
    }
    FLASHLIFT_RETURN_IF_ERROR(check_starts(2));
    if (!compatible(operand(0).getShape(), result().getShape()) || !fits_inside(operand(1).getShape(), operand(0))) {
      return error("an update {} of {} cannot give {}", text(operand(1)), text(operand(0)), text(result()));
    }
    return {};
  }

  static bool fits_inside(Dims sizes, mlir::RankedTensorType whole) {
    if (static_cast<int64_t>(sizes.size()) != whole.getRank()) {
      return false;
    }
    return llvm::all_of(llvm::zip(sizes, whole.getShape()), [](auto pair) {
      const auto [size, limit] = pair;
      return mlir::ShapedType::isDynamic(size) || mlir::ShapedType::isDynamic(limit) || (size >= 0 && size <= limit);
    });
  }

  Status check_concatenate() const {
    const std::optional<int64_t> dim = concat_dim(op_);
    const int64_t rank = result().getRank();
    if (!dim || *dim < 0 || *dim >= rank || op_->getNumOperands() == 0) {
      return error("expected operands and a 'dimension' of {}", text(result()));
    }
    int64_t total = 0;
    bool known = true;
    for (unsigned i = 0; i < op_->getNumOperands(); ++i) {
      bool fits = operand(i).getRank() == rank;
      for (int64_t d = 0; fits && d < rank; ++d) {
        fits = d == *dim || compatible(operand(i).getDimSize(static_cast<unsigned>(d)),
                                       result().getDimSize(static_cast<unsigned>(d)));
      }
      if (!fits) {
        return error("operand {} of type {} does not fit into {}", i, text(operand(i)), text(result()));
      }
      const int64_t size = operand(i).getDimSize(static_cast<unsigned>(*dim));
      known = known && !mlir::ShapedType::isDynamic(size) && !__builtin_add_overflow(total, size, &total);
    }
    if (known && !compatible(total, result().getDimSize(static_cast<unsigned>(*dim)))) {
      return error("the operands have {} elements along dimension {}, the result is {}", total, *dim, text(result()));
    }
    return {};
  }

  Status check_pad() const {
    const std::optional<Dims> low = dims("edge_padding_low"), high = dims("edge_padding_high"),
                              interior = dims("interior_padding");
    const auto rank = static_cast<size_t>(operand(0).getRank());
    if (!low || !high || !interior || low->size() != rank || high->size() != rank || interior->size() != rank ||
        static_cast<size_t>(result().getRank()) != rank || operand(1).getRank() != 0) {
      return error("expected a scalar padding value and low, high and interior padding for each dimension of {}",
                   text(operand(0)));
    }
    for (unsigned i = 0; i < rank; ++i) {
      const int64_t size = operand(0).getDimSize(i);
      if (mlir::ShapedType::isDynamic(size)) {
        continue;
      }
      int64_t inner = 0, padded = 0;
      const bool fits =
          (*interior)[i] >= 0 && !__builtin_mul_overflow(std::max<int64_t>(size - 1, 0), (*interior)[i], &inner) &&
          !__builtin_add_overflow(inner, size, &padded) && !__builtin_add_overflow(padded, (*low)[i], &padded) &&
          !__builtin_add_overflow(padded, (*high)[i], &padded) && compatible(padded, result().getDimSize(i));
      if (!fits) {
        return error("the padding does not lead from {} to {}", text(operand(0)), text(result()));
      }
    }
    return {};
  }

  Status check_dot() const {
    const int64_t lhs_rank = operand(0).getRank(), rhs_rank = operand(1).getRank();
    if (info_.kind == OpKind::kDot && (lhs_rank < 1 || lhs_rank > 2 || rhs_rank < 1 || rhs_rank > 2)) {
      return error("expected vectors or matrices, got {} and {}", text(operand(0)), text(operand(1)));
    }
    const std::optional<DotDims> numbers = dot_dims(op_);
    if (!numbers) {
      return error("expected 'dot_dimension_numbers' as #stablehlo.dot<...>");
    }
    std::vector<int64_t> lhs = numbers->lhs_batch, rhs = numbers->rhs_batch;
    lhs.insert(lhs.end(), numbers->lhs_contract.begin(), numbers->lhs_contract.end());
    rhs.insert(rhs.end(), numbers->rhs_contract.begin(), numbers->rhs_contract.end());
    bool fits = numbers->lhs_batch.size() == numbers->rhs_batch.size() && lhs.size() == rhs.size() &&
                is_subset(lhs, lhs_rank) && is_subset(rhs, rhs_rank);
    for (size_t i = 0; fits && i < lhs.size(); ++i) {
      fits = compatible(operand(0).getDimSize(static_cast<unsigned>(lhs[i])),
                        operand(1).getDimSize(static_cast<unsigned>(rhs[i])));
    }
    if (!fits) {
      return error("the dimension numbers do not fit {} and {}", text(operand(0)), text(operand(1)));
    }
    std::vector<int64_t> expected;
    for (const int64_t dim : numbers->lhs_batch) {
      expected.push_back(operand(0).getDimSize(static_cast<unsigned>(dim)));
    }
    append_free_sizes(expected, operand(0), lhs);
    append_free_sizes(expected, operand(1), rhs);
    if (!compatible(expected, result().getShape())) {
      return error("expected a result of shape [{}], got {}", fmt::join(expected, ", "), text(result()));
    }
    return {};
  }

  static void append_free_sizes(std::vector<int64_t>& sizes, mlir::RankedTensorType type,
                                const std::vector<int64_t>& used) {
    for (int64_t dim = 0; dim < type.getRank(); ++dim) {
      if (!llvm::is_contained(used, dim)) {
        sizes.push_back(type.getDimSize(static_cast<unsigned>(dim)));
      }
    }
  }

  Status check_gather() const {
    const std::optional<Gather> found = gather(op_);
    const int64_t rank = operand(0).getRank(), index_rank = operand(1).getRank();
    if (!found || !dims("slice_sizes")) {
      return error("expected 'dimension_numbers' as #stablehlo.gather<...> and 'slice_sizes'");
    }
    const GatherDims& numbers = found->dims;
    std::vector<int64_t> dropped = numbers.collapsed_slice_dims;
    dropped.insert(dropped.end(), numbers.operand_batching_dims.begin(), numbers.operand_batching_dims.end());
    const bool index_fits = numbers.index_vector_dim >= 0 && numbers.index_vector_dim <= index_rank;
    const int64_t vector = index_fits && numbers.index_vector_dim < index_rank
                               ? operand(1).getDimSize(static_cast<unsigned>(numbers.index_vector_dim))
                               : 1;
    const int64_t batch_rank = index_rank - (numbers.index_vector_dim < index_rank ? 1 : 0);
    const auto offsets = static_cast<int64_t>(numbers.offset_dims.size());
    const bool fits = index_fits && fits_inside(found->slice_sizes, operand(0)) && is_subset(dropped, rank) &&
                      is_subset(numbers.start_index_map, rank) && is_subset(numbers.offset_dims, result().getRank()) &&
                      is_subset(numbers.start_indices_batching_dims, index_rank) &&
                      numbers.operand_batching_dims.size() == numbers.start_indices_batching_dims.size() &&
                      compatible(static_cast<int64_t>(numbers.start_index_map.size()), vector) &&
                      offsets == rank - static_cast<int64_t>(dropped.size()) &&
                      result().getRank() == batch_rank + offsets;
    return fits ? Status()
                : Status(error("the dimension numbers and slice sizes do not lead from {} and {} to {}",
                               text(operand(0)), text(operand(1)), text(result())));
  }

  // Checks that a region has one block that ends in stablehlo.return with `values` values.
  Status check_region(unsigned index, size_t arguments, size_t values) const {
    mlir::Region& region = op_->getRegion(index);
    if (!region.hasOneBlock() || region.front().empty()) {
      return error("expected region {} to be one block", index);
    }
    mlir::Block& body = region.front();
    if (body.getNumArguments() != arguments) {
      return error("expected {} of region {}, got {}", counted(arguments, "argument"), index, body.getNumArguments());
    }
    if (kind(&body.back()) != OpKind::kReturn || body.back().getNumOperands() != values) {
      return error("expected region {} to end in stablehlo.return with {}", index, counted(values, "value"));
    }
    return {};
  }

  Status check_reduce() const {
    const unsigned inputs = op_->getNumOperands() / 2;
    const std::optional<Dims> over = dims("dimensions");
    if (!over) {
      return missing("dimensions");
    }
    if (inputs == 0 || op_->getNumOperands() != 2 * inputs || op_->getNumResults() != inputs ||
        op_->getNumRegions() != 1) {
      return error("expected an initial value and a result for each input, and one region");
    }
    FLASHLIFT_RETURN_IF_ERROR(check_region(0, 2 * inputs, inputs));
    for (unsigned i = 0; i < inputs; ++i) {
      const mlir::RankedTensorType input = operand(i);
      if (!input || !result(i) || !is_subset(*over, input.getRank())) {
        return error("expected ranked tensors and 'dimensions' that they have");
      }
      std::vector<int64_t> expected;
      append_free_sizes(expected, input, over->vec());
      if (!compatible(expected, result(i).getShape())) {
        return error("expected a result of shape [{}], got {}", fmt::join(expected, ", "), text(result(i)));
      }
    }
    return {};
  }

  Status check_while() const {
    const size_t count = op_->getNumOperands();
    if (op_->getNumRegions() != 2 || op_->getNumResults() != count) {
      return error("expected two regions and as many results as operands");
    }
    FLASHLIFT_RETURN_IF_ERROR(check_region(0, count, 1));
    return check_region(1, count, count);
  }

  Status check_branches(int count) const {
    const auto regions = static_cast<int>(op_->getNumRegions());
    if (regions == 0 || (count >= 0 && regions != count)) {
      return error("expected {}, got {}", count < 0 ? "some regions" : counted(count, "region"), regions);
    }
    for (int i = 0; i < regions; ++i) {
      FLASHLIFT_RETURN_IF_ERROR(check_region(static_cast<unsigned>(i), 0, op_->getNumResults()));
    }
    return {};
  }

  Status check_barrier() const {
    if (op_->getOperandTypes() != op_->getResultTypes()) {
      return error("expected results of the operands' types");
    }
    return {};
  }

  Status check_composite() const {
    if (!composite(op_) || !op_->getAttrOfType<mlir::StringAttr>("name")) {
      return error("expected the attributes 'name', a string, and 'decomposition', a function's name");
    }
    return {};
  }

  mlir::Operation* op_;
  const OpInfo& info_;
};

}  // namespace

Status verify_op(mlir::Operation* op) {
  const llvm::StringRef name = op->getName().getStringRef();
  const OpInfo* info = find_op({name.data(), name.size()});
  return info ? OpCheck(op, *info).run() : Status();
}

}  // namespace flashlift::stablehlo
