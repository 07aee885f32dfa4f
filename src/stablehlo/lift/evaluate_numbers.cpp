// Element types that a score program does not have: narrow and unsigned integers, and 16-bit floats.
#include <fmt/format.h>

#include "score/operation.h"
#include "stablehlo/lift/evaluate.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

using score::Interval;

std::optional<DType> element_dtype(mlir::Value value) { return dtype(value.getType()); }

bool is_half(DType type) { return type == DType::kBF16 || type == DType::kF16; }

bool is_unsigned(DType type) { return type == DType::kU8 || type == DType::kU32; }

// The range of an integer type that is narrower than its type in score programs.
struct Bounds {
  int64_t low = 0;
  int64_t high = 0;
  int bits = 0;
};

std::optional<Bounds> narrow_bounds(DType type) {
  switch (type) {
    case DType::kI8:
      return Bounds{-0x80, 0x7f, 8};
    case DType::kU8:
      return Bounds{0, 0xff, 8};
    case DType::kI16:
      return Bounds{-0x8000, 0x7fff, 16};
    case DType::kU32:
      return Bounds{0, 0xffffffff, 32};
    default:
      return std::nullopt;
  }
}

// The type represents all whole numbers up to this one.
int64_t largest_exact(DType type) { return type == DType::kBF16 ? 256 : 2048; }

}  // namespace

Ranges Evaluator::ranges() {
  const auto of_leaf = [this](int64_t leaf, Type type) {
    const auto bounds = narrow_bounds(*element_dtype(leaves_[static_cast<size_t>(leaf)]));
    return bounds ? Interval::integer(bounds->low, bounds->high) : Interval::everything(type);
  };
  return {arena_, atom_sizes_, of_leaf, known_ranges_};
}

// The number with the same low bits in an integer type of `bits` bits.
SymId Evaluator::wrapped(SymId value, DType type) {
  const auto bounds = narrow_bounds(type);
  if (value == kNoSym || !bounds || ranges().lies_within(value, bounds->low, bounds->high)) {
    return value;
  }
  const Type scalar = arena_[value].type;
  if (is_unsigned(type)) {
    return arena_.op(Op::k_and, {value, arena_.constant(scalar, bounds->high)});
  }
  const SymId unused = arena_.constant(scalar, 32 - bounds->bits);
  return arena_.op(Op::k_shr, {arena_.op(Op::k_shl, {value, unused}), unused});
}

bool Evaluator::is_number_of(SymId value, DType half, int depth) {
  constexpr int kDeepest = 6;  // a limit, since parts that operands share are read again for each
  const Sym& sym = arena_[value];
  const Op round = half == DType::kBF16 ? Op::k_round_bf16 : Op::k_round_f16;
  if (sym.kind == SymKind::kConstant) {
    return arena_.op(round, {value}) == value;
  }
  if (sym.kind == SymKind::kLoad) {
    return element_dtype(leaves_[static_cast<size_t>(sym.payload)]) == half;
  }
  if (ranges().is_whole(value, largest_exact(half))) {
    return true;
  }
  if (sym.kind != SymKind::kOp || depth > kDeepest) {
    return false;
  }
  const auto args_are = [&](size_t first) {
    for (size_t i = first; i < sym.args.size(); ++i) {
      if (!is_number_of(sym.args[i], half, depth + 1)) {
        return false;
      }
    }
    return true;
  };
  switch (sym.op) {
    case Op::k_select:
      return args_are(1);
    case Op::k_neg:
    case Op::k_abs:
    case Op::k_sign:
    case Op::k_min:
    case Op::k_max:
      return args_are(0);
    default:
      return sym.op == round;
  }
}

SymId Evaluator::rounded(SymId value, mlir::Operation* op) {
  const auto type = element_dtype(op->getResult(0));
  if (value == kNoSym || !type || !is_half(*type) || arena_[value].type != Type::kF32 ||
      is_number_of(value, *type, 0)) {
    return value;
  }
  const bool is_of_operands = type == half_;
  if (arena_[value].has_score && is_of_operands && !rounds_scores_) {
    unrounded_.insert(value);
    return value;
  }
  if (arena_[value].has_score && !is_of_operands) {
    return fail(
        refuse<Reason::kRoundsScores>(op->getName().getStringRef().str(), describe(op->getLoc()), to_string(*type)));
  }
  if (kind(op) != OpKind::kConvert && !is_of_operands) {
    return kNoSym;
  }
  return arena_.op(*type == DType::kBF16 ? Op::k_round_bf16 : Op::k_round_f16, {value});
}

SymId Evaluator::evaluate_iota(mlir::Value value, const std::vector<Index>& indices) {
  mlir::Operation* op = value.getDefiningOp();
  const auto type = element_dtype(value);
  if (!type) {
    return kNoSym;
  }
  const SymId index = arena_.convert(index_formula(indices[*iota_dim(op)]), scalar_type(*type));
  return rounded(wrapped(index, *type), op);
}

// The number that a conversion to a wider type reads. XLA computes bf16 in f32 and rounds each result, unless a
// conversion to f32 reads it.
SymId Evaluator::before_rounding(mlir::Value operand, SymId value) {
  mlir::Operation* op = operand.getDefiningOp();
  const auto scalar = op != nullptr && is_elementwise(op) ? scalar_op(kind(op)) : std::nullopt;
  const bool computes = scalar && !score::is_any(*scalar, {Op::k_min, Op::k_max, Op::k_neg, Op::k_abs, Op::k_sign});
  return value != kNoSym && computes && arena_[value].has_score && arena_.is_op(value, Op::k_round_bf16)
             ? arena_[value].args[0]
             : value;
}

SymId Evaluator::evaluate_convert(mlir::Operation* op, const std::vector<Index>& indices) {
  const mlir::Value operand = op->getOperand(0);
  const auto from = element_dtype(operand);
  const auto to = element_dtype(op->getResult(0));
  if (!from || !to) {
    return kNoSym;
  }
  // A score program has no f64. It can only represent those that were f32 or become f32.
  if ((*to == DType::kF64 && !is_float(*from)) || (*from == DType::kF64 && !is_float(*to)) ||
      (*from == DType::kF64 && is_half(*to))) {
    return kNoSym;
  }
  const SymId value =
      rounds_scores_ ? before_rounding(operand, evaluate(operand, indices)) : evaluate(operand, indices);
  if (value == kNoSym) {
    return kNoSym;
  }
  // If the module computes a tensor in 16 bits, it computes the conversion, too, since XLA may or may not round between
  // the two.
  const Sym& sym = arena_[value];
  mlir::Operation* definition = operand.getDefiningOp();
  const bool is_leaf = sym.kind == SymKind::kLoad && leaves_[static_cast<size_t>(sym.payload)] == operand;
  const bool is_computed = definition != nullptr && (is_elementwise(definition) || kind(definition) == OpKind::kIota);
  if (is_leaf && (*from == DType::kF64 || (is_half(*from) && from != half_ && is_computed))) {
    return kNoSym;
  }
  const Type scalar = scalar_type(*to);
  const auto bounds = narrow_bounds(*to);
  if (bounds && is_float(*from)) {  // the conversion saturates
    const SymId whole = arena_.convert(value, scalar);
    const SymId from_below = arena_.op(Op::k_max, {whole, arena_.constant(scalar, bounds->low)});
    return arena_.op(Op::k_min, {from_below, arena_.constant(scalar, bounds->high)});
  }
  return rounded(wrapped(arena_.convert(value, scalar), *to), op);
}

SymId Evaluator::evaluate_compare(mlir::Operation* op, const std::vector<Index>& indices) {
  const auto type = element_dtype(op->getOperand(0));
  const auto how = compare(op);
  if (!type || *type == DType::kF64 || !how || how->type == CompareType::kTotalOrder) {
    return kNoSym;
  }
  const std::vector<SymId> args = evaluate_operands(op, indices);
  if (args.empty()) {
    return kNoSym;
  }
  switch (how->direction) {
    case CompareDirection::kEq:
      return arena_.op(Op::k_eq, args);
    case CompareDirection::kNe:
      return arena_.op(Op::k_ne, args);
    case CompareDirection::kGe:
      return arena_.op(Op::k_ge, args);
    case CompareDirection::kGt:
      return arena_.op(Op::k_gt, args);
    case CompareDirection::kLe:
      return arena_.op(Op::k_le, args);
    case CompareDirection::kLt:
      return arena_.op(Op::k_lt, args);
  }
  return kNoSym;
}

// The operation's result in its own type, computed by the score program's types.
SymId Evaluator::in_own_arithmetic(mlir::Operation* op, Op scalar, std::vector<SymId> args) {
  const DType type = *element_dtype(op->getOperand(0));
  if (const auto bounds = narrow_bounds(type)) {
    if (scalar == Op::k_shr && is_unsigned(type)) {
      return kNoSym;  // the shift repeats the highest bit, which is no sign in the wider type
    }
    if (scalar == Op::k_ushr && !is_unsigned(type)) {
      args[0] = arena_.op(Op::k_and, {args[0], arena_.constant(Type::kI32, (int64_t{1} << bounds->bits) - 1)});
    }
  }
  return rounded(wrapped(arena_.op(scalar, std::move(args)), type), op);
}

}  // namespace flashlift::stablehlo
