#include "stablehlo/lift/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "score/operation.h"
#include "stablehlo/lift/layout.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"
#include "support/lazy.h"

namespace flashlift::stablehlo {
namespace {

// More than any producer's chain between two products needs, but not too much for the stack.
constexpr int kMaxDepth = 3000;

// Whether in_own_arithmetic() can compute in this element type.
bool has_arithmetic(DType dtype) { return dtype != DType::kF64; }

std::optional<DType> element_dtype(mlir::Value value) { return dtype(value.getType()); }

std::optional<ReduceKind> reduce_kind(Reducer reducer) {
  switch (reducer) {
    case Reducer::kAdd:
      return ReduceKind::kAdd;
    case Reducer::kMaximum:
    case Reducer::kArgMaximum:
      return ReduceKind::kMaximum;
    case Reducer::kMinimum:
      return ReduceKind::kMinimum;
    case Reducer::kAnd:
      return ReduceKind::kAnd;
    case Reducer::kOr:
      return ReduceKind::kOr;
    default:
      return std::nullopt;
  }
}

// Whether the score program computes sums of this element type, apart from rounding.
bool sums_alike(DType type) {
  return type == DType::kI32 || type == DType::kI64 || type == DType::kF32 || type == DType::kBF16 ||
         type == DType::kF16;
}

// Whether the reduction's start value leaves the result unchanged, or, for maxima and minima, can be applied to it
// afterwards.
bool is_neutral(ReduceKind kind, double init, DType type) {
  switch (kind) {
    case ReduceKind::kAdd:
      return init == 0;
    case ReduceKind::kMaximum:
    case ReduceKind::kMinimum:
      return is_float(type);
    case ReduceKind::kAnd:
      return init != 0 && type == DType::kBool;
    case ReduceKind::kOr:
      return init == 0;
  }
  return false;
}

}  // namespace

std::optional<Op> scalar_op(OpKind kind) {
  using Map = std::map<std::string_view, Op>;
  static constinit Lazy<const Map> lazy;
  const Map& by_name = lazy.get([] {
    Map names;
    for (int i = 0; i < kOpCount; ++i) {
      names.emplace(score::operation(static_cast<Op>(i)).stablehlo, static_cast<Op>(i));
    }
    names.erase("");
    return names;
  });
  const auto found = by_name.find(info(kind).name);
  return found == by_name.end() ? std::nullopt : std::optional(found->second);
}

Evaluator::Evaluator(SymArena& arena, mlir::Operation* score_product, std::vector<int64_t> atom_sizes,
                     bool opens_reductions, std::optional<DType> half,
                     std::function<bool(mlir::Operation*)> depends_on_score, Work& work)
    : arena_(arena),
      score_product_(score_product),
      atom_sizes_(std::move(atom_sizes)),
      opens_reductions_(opens_reductions),
      half_(half),
      depends_on_score_(std::move(depends_on_score)),
      work_(work) {
  atom_sizes_.resize(kMaxAtoms, 1);
}

SymId Evaluator::fail(Refusal refusal) {
  if (!failure_) {
    failure_ = std::move(refusal);
  }
  return kNoSym;
}

SymId Evaluator::index_formula(const Index& index, Type type) {
  if (index.general != kNoSym) {
    return arena_.convert(index.general, type);
  }
  SymId sum = kNoSym;
  for (const auto& [atom, coefficient] : index.affine.terms) {
    SymId term = arena_.convert(atom_formula(atom), type);
    if (coefficient != 1) {
      term = arena_.op(Op::k_mul, {term, arena_.constant(type, coefficient)});
    }
    sum = sum == kNoSym ? term : arena_.op(Op::k_add, {sum, term});
  }
  const SymId constant = arena_.constant(type, index.affine.constant);
  return sum == kNoSym ? constant : arena_.op(Op::k_add, {sum, constant});
}

Index Evaluator::shifted(const Index& index, int64_t offset) {
  if (index.general == kNoSym) {
    return {.affine = affine_sum(index.affine, {.constant = offset, .terms = {}})};
  }
  const SymId amount = arena_.constant(arena_[index.general].type, offset);
  return {.affine = {}, .general = arena_.op(Op::k_add, {index.general, amount})};
}

SymId Evaluator::evaluate(mlir::Value value, const std::vector<Index>& indices) {
  if (failure_) {
    return kNoSym;
  }
  auto key = std::make_pair(value.getAsOpaquePointer(), indices);
  if (const auto found = memo_.find(key); found != memo_.end()) {
    return found->second;
  }
  work_.spend(1);
  if (work_.is_spent() || ++steps_ > Work::kMostOfAnAttempt) {
    return fail(refuse<Reason::kTooManySteps>());
  }
  if (++depth_ > kMaxDepth) {
    return fail(refuse<Reason::kNestedTooDeeply>());
  }
  const SymId result = evaluate_uncached(value, indices);
  --depth_;
  if (result != kNoSym) {
    memo_.emplace(std::move(key), result);
    places_.push_back({.value = value, .indices = indices, .formula = result});
  }
  return result;
}

SymId Evaluator::try_evaluate(mlir::Value value, const std::vector<Index>& indices, std::optional<Refusal>& refusal) {
  const size_t places = places_.size();
  const size_t leaves = leaves_.size();
  const int bound = next_bound_;
  const SymId result = evaluate(value, indices);
  if (result != kNoSym) {
    return result;
  }
  refusal = failure_.value_or(refuse<Reason::kReadAcrossPlaces>());
  for (size_t i = places; i < places_.size(); ++i) {
    memo_.erase(std::pair(places_[i].value.getAsOpaquePointer(), places_[i].indices));
  }
  places_.resize(places);
  leaves_.resize(leaves);
  known_ranges_ = {};
  for (int atom = bound; atom < next_bound_; ++atom) {
    digits_[static_cast<size_t>(atom)] = {};
    atom_sizes_[static_cast<size_t>(atom)] = 1;
  }
  next_bound_ = bound;
  depth_ = 0;
  active_ranges_.clear();
  range_split_.reset();
  failure_.reset();
  split_request_ = {};
  return kNoSym;
}

SymId Evaluator::evaluate_with_roundings(mlir::Value value, const std::vector<Index>& indices) {
  const size_t places = places_.size();
  std::optional<Refusal> refusal;
  rounds_scores_ = true;
  std::swap(memo_, memo_with_roundings_);
  const SymId result = try_evaluate(value, indices, refusal);
  std::swap(memo_, memo_with_roundings_);
  rounds_scores_ = false;
  places_.resize(places);
  return result;
}

SymId Evaluator::evaluate_uncached(mlir::Value value, const std::vector<Index>& indices) {
  mlir::Operation* op = value.getDefiningOp();
  if (op == nullptr || !static_tensor(value)) {
    return leaf(value, indices);
  }
  if (const mlir::Value same = same_number(value)) {
    return evaluate(same, indices);
  }
  if (op == score_product_) {
    const SymId product = score(indices);
    return product == kNoSym ? kNoSym : rounded(product, op);
  }
  switch (kind(op)) {
    case OpKind::kConstant:
      return evaluate_constant(value, indices);
    case OpKind::kIota: {
      const SymId index = evaluate_iota(value, indices);
      return is_not_understood(index) ? leaf(value, indices) : index;
    }
    case OpKind::kBroadcastInDim:
      return evaluate_broadcast(op, indices);
    case OpKind::kTranspose: {
      const auto order = permutation(op);
      std::vector<Index> operand_indices(indices.size());
      for (size_t i = 0; i < indices.size(); ++i) {
        operand_indices[order[i]] = indices[i];
      }
      return evaluate(op->getOperand(0), operand_indices);
    }
    case OpKind::kReshape:
      return evaluate_reshape(value, indices);
    case OpKind::kSlice:
      return evaluate_slice(op, indices);
    case OpKind::kDynamicSlice:
      return evaluate_dynamic_slice(op, indices);
    case OpKind::kConcatenate:
      return evaluate_concatenate(value, indices);
    case OpKind::kPad:
      return evaluate_pad(value, indices);
    case OpKind::kGather:
      return evaluate_gather(value, indices);
    case OpKind::kReduce:
      return evaluate_reduce(value, indices);
    case OpKind::kDot:
    case OpKind::kDotGeneral:
      return evaluate_sum_by_product(value, indices);
    default: {
      const SymId result = evaluate_elementwise(op, indices);
      return is_not_understood(result) ? leaf(value, indices) : result;
    }
  }
}

// Returns kNoSym without a failure if the operation is not understood: the caller then reads its result as a tensor.
SymId Evaluator::evaluate_elementwise(mlir::Operation* op, const std::vector<Index>& indices) {
  const OpKind op_kind = kind(op);
  if (op_kind == OpKind::kConvert) {
    return evaluate_convert(op, indices);
  }
  if (op_kind == OpKind::kCompare) {
    return evaluate_compare(op, indices);
  }
  if (op_kind == OpKind::kSelect || op_kind == OpKind::kClamp) {
    std::vector<SymId> args;
    for (const mlir::Value operand : op->getOperands()) {
      const bool scalar = shape(operand).empty();  // a predicate or a bound for the whole tensor
      args.push_back(evaluate(operand, scalar ? std::vector<Index>{} : indices));
      if (args.back() == kNoSym) {
        return kNoSym;
      }
    }
    if (op_kind == OpKind::kSelect) {
      return arena_.op(Op::k_select, args);
    }
    return arena_.op(Op::k_min, {arena_.op(Op::k_max, {args[1], args[0]}), args[2]});
  }
  if (op_kind == OpKind::kReducePrecision) {
    return kNoSym;
  }
  const auto scalar = op_kind == OpKind::kChloSquare ? Op::k_mul : scalar_op(op_kind);
  const auto operand_type = op->getNumOperands() > 0 ? element_dtype(op->getOperand(0)) : std::nullopt;
  if (!scalar || !operand_type || !has_arithmetic(*operand_type)) {
    return kNoSym;
  }
  std::vector<SymId> args = evaluate_operands(op, indices);
  if (args.empty()) {
    return kNoSym;
  }
  if (op_kind == OpKind::kChloSquare) {
    args.push_back(args[0]);
  }
  return in_own_arithmetic(op, *scalar, std::move(args));
}

std::vector<SymId> Evaluator::evaluate_operands(mlir::Operation* op, const std::vector<Index>& indices) {
  std::vector<SymId> args;
  for (const mlir::Value operand : op->getOperands()) {
    args.push_back(evaluate(operand, indices));
    if (args.back() == kNoSym) {
      return {};
    }
  }
  return args;
}

SymId Evaluator::evaluate_constant(mlir::Value value, const std::vector<Index>& indices) {
  const auto elements = constant(value);
  const auto type = element_dtype(value);
  if (!elements || !type) {
    return leaf(value, indices);
  }
  const auto number = [&](double x, int64_t integer) {
    const Type scalar = scalar_type(*type);
    return scalar == Type::kF32 ? arena_.f32(static_cast<float>(x)) : arena_.constant(scalar, integer);
  };
  const auto element = [&](int64_t i) {
    return number(element_as_double(elements, i).value_or(0), element_as_integer(elements, i).value_or(0));
  };
  if (elements.getNumElements() > 0 && (elements.isSplat() || elements.getNumElements() == 1)) {
    return element(0);
  }
  // Reads a constant that numpy.arange computed as an iota: interval analysis can bound it, which it cannot do for a
  // load.
  constexpr int64_t kLongest = 1 << 20;
  const int64_t count = elements.getNumElements();
  if (indices.size() == 1 && count > 1 && count <= kLongest && (type == DType::kI32 || type == DType::kI64)) {
    const int64_t first = *element_as_integer(elements, 0);
    const int64_t step = *element_as_integer(elements, 1) - first;
    bool is_arithmetic = true;
    for (int64_t i = 2; i < count && is_arithmetic; ++i) {
      is_arithmetic = *element_as_integer(elements, i) == first + i * step;
    }
    if (is_arithmetic) {
      const Type scalar = scalar_type(*type);
      const SymId scaled = arena_.op(Op::k_mul, {index_formula(indices[0], scalar), arena_.constant(scalar, step)});
      return arena_.op(Op::k_add, {scaled, arena_.constant(scalar, first)});
    }
  }
  return leaf(value, indices);
}

SymId Evaluator::evaluate_reduce(mlir::Value value, const std::vector<Index>& indices) {
  mlir::Operation* op = value.getDefiningOp();
  const auto how = reduction(op);
  const auto kind = how ? reduce_kind(how->reducer) : std::nullopt;
  const unsigned result = llvm::cast<mlir::OpResult>(value).getResultNumber();
  const auto init = how && !how->inits.empty() ? splat(how->inits[0]) : std::nullopt;
  const auto type = element_dtype(value);
  if (!kind || result != 0 || how->dims.empty() || !init || !type || !is_neutral(*kind, *init, *type) ||
      (*kind == ReduceKind::kAdd && !sums_alike(*type))) {
    return leaf(value, indices);
  }
  const bool is_logical = *kind == ReduceKind::kAnd || *kind == ReduceKind::kOr;
  // A reduction of a single element. jnp.take has one over the coordinates of an index that may be out of range, and
  // the gradient of a broadcast that adds a dimension of size 1 has one.
  const bool is_of_one = (is_logical || *kind == ReduceKind::kAdd) && llvm::all_of(how->dims, [&](int64_t dim) {
                           return shape(how->inputs[0])[static_cast<size_t>(dim)] == 1;
                         });
  if (!depends_on_score_(op) && !(is_logical && opens_reductions_) && !is_of_one) {
    leaves_reductions_ = leaves_reductions_ || is_logical;
    return leaf(value, indices);  // the module computes it once, instead of the call once for each row
  }
  SymId reduced = evaluate_reduce_from_neutral(*kind, how->inputs[0], how->dims.vec(), indices);
  reduced = reduced == kNoSym ? kNoSym : rounded(reduced, op);
  if (is_not_understood(reduced)) {
    return leaf(value, indices);
  }
  const bool has_start = *kind == ReduceKind::kMaximum || *kind == ReduceKind::kMinimum;
  if (reduced == kNoSym || !has_start) {
    return reduced;
  }
  return arena_.op(*kind == ReduceKind::kMaximum ? Op::k_max : Op::k_min,
                   {reduced, arena_.f32(static_cast<float>(*init))});
}

SymId Evaluator::evaluate_reduce_from_neutral(ReduceKind kind, mlir::Value operand, std::vector<int64_t> dims,
                                              const std::vector<Index>& indices) {
  std::sort(dims.begin(), dims.end());
  std::vector<Index> operand_indices = indices;
  for (const int64_t dim : dims) {
    operand_indices.insert(operand_indices.begin() + dim, Index{});
  }
  std::erase_if(dims, [&](int64_t dim) { return shape(operand)[static_cast<size_t>(dim)] == 1; });
  if (dims.empty()) {
    return evaluate(operand, operand_indices);  // a reduction of one element
  }
  if (dims.size() != 1) {
    return evaluate_reduce_over_keys(kind, operand, dims, operand_indices);
  }
  const size_t dim = static_cast<size_t>(dims[0]);
  std::vector<ReducePiece> pieces;
  if (!evaluate_pieces(operand, operand_indices, dim, 0, shape(operand)[dim], pieces)) {
    return kNoSym;
  }
  return arena_.reduce(kind, pieces);
}

// A product with a constant of equal elements is the sum of the other operand, times that number.
SymId Evaluator::evaluate_sum_by_product(mlir::Value value, const std::vector<Index>& indices) {
  mlir::Operation* op = value.getDefiningOp();
  const auto side = side_summed_by_product(op);
  const auto type = element_dtype(value);
  if (!side || !type || !sums_alike(*type) || !depends_on_score_(op)) {
    return leaf(value, indices);
  }
  const OperandDims dims = operand_dims(op, *side);
  // Free dimensions come after the batch in the result, those of the left operand first.
  const size_t first_free = dims.batch.size() + (*side == 0 ? 0 : operand_dims(op, 0).free.size());
  std::vector<std::pair<int64_t, Index>> kept;  // the operand's, that the result has, too
  for (size_t i = 0; i < dims.batch.size(); ++i) {
    kept.emplace_back(dims.batch[i], indices[i]);
  }
  for (size_t i = 0; i < dims.free.size(); ++i) {
    kept.emplace_back(dims.free[i], indices[first_free + i]);
  }
  std::sort(kept.begin(), kept.end());
  std::vector<Index> of_sum;
  std::transform(kept.begin(), kept.end(), std::back_inserter(of_sum), [](const auto& each) { return each.second; });
  const SymId sum = evaluate_reduce_from_neutral(ReduceKind::kAdd, op->getOperand(*side), dims.contract, of_sum);
  if (sum == kNoSym) {
    return is_not_understood(sum) ? leaf(value, indices) : kNoSym;
  }
  const SymId factor = arena_.f32(static_cast<float>(*number_of(op->getOperand(1 - *side))));
  return rounded(arena_.op(Op::k_mul, {sum, factor}), op);
}

bool Evaluator::mentions_key(const Index& index) const {
  return index.general != kNoSym ? arena_.depends_on(index.general, kKeyAtom) : runs_over_keys(index.affine);
}

// A reduction over several dimensions that together are the keys. `indices` are the operand's, without those of `dims`.
// Returns kNoSym without a failure if the dimensions are not the keys.
SymId Evaluator::evaluate_reduce_over_keys(ReduceKind kind, mlir::Value operand, const std::vector<int64_t>& dims,
                                           std::vector<Index> indices) {
  std::vector<int64_t> sizes;
  int64_t count = 1;
  for (const int64_t dim : dims) {
    sizes.push_back(shape(operand)[static_cast<size_t>(dim)]);
    count *= sizes.back();
  }
  const bool sees_a_key = std::any_of(indices.begin(), indices.end(), [&](const Index& i) { return mentions_key(i); });
  const auto keys = count == atom_sizes_[kKeyAtom] && !sees_a_key ? key_digits(sizes) : std::nullopt;
  if (!keys) {
    return kNoSym;
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    indices[static_cast<size_t>(dims[i])].affine = (*keys)[i];
  }
  active_ranges_.push_back(kKeyAtom);
  const SymId body = evaluate(operand, indices);
  active_ranges_.pop_back();
  return body == kNoSym ? kNoSym : arena_.reduce(kind, {{.body = body, .size = count, .atom = kKeyAtom}});
}

// An index variable for a reduction over this many elements. Reductions that are not nested share variables, so that
// equal bodies are equal formulas.
int Evaluator::bound_atom(int64_t size, const std::vector<Index>& indices) {
  for (int atom = kFirstBound; atom < next_bound_; ++atom) {
    const bool is_free = std::none_of(indices.begin(), indices.end(), [&](const Index& index) {
      return index.general != kNoSym ? arena_.depends_on(index.general, atom)
                                     : std::any_of(index.affine.terms.begin(), index.affine.terms.end(),
                                                   [&](const auto& term) { return term.first == atom; });
    });
    if (is_free && digits_[static_cast<size_t>(atom)].of < 0 && atom_sizes_[static_cast<size_t>(atom)] == size &&
        std::find(active_ranges_.begin(), active_ranges_.end(), atom) == active_ranges_.end()) {
      return atom;
    }
  }
  if (next_bound_ == kMaxAtoms) {
    return -1;
  }
  atom_sizes_[static_cast<size_t>(next_bound_)] = size;
  return next_bound_++;
}

bool Evaluator::evaluate_pieces(mlir::Value operand, std::vector<Index> indices, size_t dim, int64_t start,
                                int64_t size, std::vector<ReducePiece>& pieces) {
  ReducePiece piece{.body = kNoSym, .size = size, .atom = -1};
  indices[dim] = {.affine = {.constant = start, .terms = {}}};
  if (size != 1) {
    const bool over_keys =
        size == atom_sizes_[kKeyAtom] &&
        std::none_of(indices.begin(), indices.end(), [&](const Index& i) { return mentions_key(i); });
    piece.atom = over_keys ? kKeyAtom : bound_atom(size, indices);
    if (piece.atom < 0) {
      fail(refuse<Reason::kTooManyReductions>());
      return false;
    }
    indices[dim].affine = affine_sum(indices[dim].affine, affine_atom(piece.atom));
  }
  active_ranges_.push_back(piece.atom);
  piece.body = evaluate(operand, indices);
  active_ranges_.pop_back();
  if (piece.body != kNoSym) {
    pieces.push_back(piece);
    return true;
  }
  if (!range_split_ || range_split_->first != piece.atom) {
    return false;
  }
  const int64_t first = range_split_->second;
  range_split_.reset();
  return evaluate_pieces(operand, indices, dim, start, first, pieces) &&
         evaluate_pieces(operand, indices, dim, start + first, size - first, pieces);
}

SymId Evaluator::score(const std::vector<Index>& indices) {
  AtomSet atoms = 0;
  for (const Index& index : indices) {
    if (index.general != kNoSym) {
      return fail(refuse<Reason::kComputedScoreIndex>());
    }
    for (const auto& term : index.affine.terms) {
      atoms |= atom_bit(is_of_key(term.first) ? kKeyAtom : term.first);
    }
  }
  if (score_indices_.empty()) {
    score_indices_ = indices;
  } else if (score_indices_ != indices) {
    return fail(refuse<Reason::kAcrossPlaces>());
  }
  return arena_.score(atoms);
}

SymId Evaluator::leaf(mlir::Value value, const std::vector<Index>& indices) {
  mlir::Operation* op = value.getDefiningOp();
  if (op != nullptr && depends_on_score_(op)) {
    if (dtype(value.getType()) == DType::kF64) {
      return fail(refuse<Reason::kComputesInF64>(op->getName().getStringRef().str(), describe(op->getLoc())));
    }
    const auto how = kind(op) == OpKind::kReduce ? reduction(op) : std::nullopt;
    if (how && how->reducer == Reducer::kAdd && how->inits.size() == 1 && splat(how->inits[0]) != 0.0) {
      return fail(refuse<Reason::kStartsFromNumber>(op->getName().getStringRef().str(), describe(op->getLoc())));
    }
    if (how && (how->reducer == Reducer::kMaximum || how->reducer == Reducer::kAdd)) {
      return fail(refuse<Reason::kReducesOverMore>(op->getName().getStringRef().str(), describe(op->getLoc())));
    }
    if (is_product(op)) {
      return fail(refuse<Reason::kProductBetween>(describe(op->getLoc())));
    }
    const auto call = custom_call(op);
    return fail(refuse<Reason::kNotUnderstood>(op->getName().getStringRef().str(),
                                               call ? fmt::format(" @{}", call->target) : "", describe(op->getLoc())));
  }
  return load(value, indices);
}

SymId Evaluator::load(mlir::Value value, const std::vector<Index>& indices) {
  const auto type = element_dtype(value);
  if (!static_tensor(value) || !type || indices.size() > static_cast<size_t>(kMaxRank)) {
    return fail(refuse<Reason::kUnsupportedTensor>());
  }
  std::vector<SymId> formulas;
  for (const Index& index : indices) {
    // A computed index keeps its type: narrowing an i64 first would wrap around, whereas the load clamps.
    const Type type_of_index = index.general != kNoSym ? arena_[index.general].type : Type::kI32;
    formulas.push_back(index_formula(index, type_of_index));
  }
  const auto found =
      std::find_if(leaves_.begin(), leaves_.end(), [&](mlir::Value leaf) { return same_values_(leaf, value); });
  const int64_t number = found - leaves_.begin();
  if (found == leaves_.end()) {
    leaves_.push_back(value);
  }
  return arena_.load(number, scalar_type(*type), std::move(formulas));
}

}  // namespace flashlift::stablehlo
