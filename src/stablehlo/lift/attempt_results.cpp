#include <algorithm>
#include <cmath>
#include <set>

#include "llvm/ADT/DenseSet.h"
#include "stablehlo/algebra/numeric.h"
#include "stablehlo/lift/attempt.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// A name for a captured tensor that a person recognises: the argument's, or a number.
std::string leaf_name(mlir::Value value, size_t number) {
  if (const auto argument = llvm::dyn_cast<mlir::BlockArgument>(value)) {
    return fmt::format("arg{}", argument.getArgNumber());
  }
  return fmt::format("t{}", number);
}

// What the elements of a constant lie within, if it is one of f32 numbers; 16-bit ones are read as such.
std::optional<score::Interval> range_of_constant(mlir::Value value) {
  constexpr int64_t kMost = 1 << 16;
  const auto elements = constant(value);
  const auto type = dtype(value.getType());
  if (!elements || !type || scalar_type(*type) != Type::kF32 || elements.getNumElements() > kMost) {
    return std::nullopt;
  }
  std::optional<score::Interval> range;
  for (int64_t i = 0; i < elements.getNumElements(); ++i) {
    const auto element = element_as_double(elements, i);
    if (!element || std::isnan(*element)) {
      return std::nullopt;
    }
    const score::Interval one = score::Interval::real(*element, *element);
    range = range ? score::hull(Type::kF32, *range, one) : one;
  }
  return range;
}

}  // namespace

Proof Attempt::build_programs() {
  Problem& problem = lifted_.problem;
  problem.batch = extent(roles_.batch, sizes_);
  problem.kv_heads = extent(roles_.kv_head, sizes_);
  problem.q_heads = extent(roles_.heads(), sizes_);
  problem.q_len = extent(roles_.query, sizes_);
  problem.kv_len = sizes_[kKeyAtom];
  problem.head_dim = extent(depth_, sizes_);
  problem.value_dim = extent(value_depth_, sizes_);
  problem.dtype = *dtype(q_.value.getType());
  mlir::Value out = options_.gradient == GradientUse::kAlone ? d_out_operand_ : out_.value;
  const auto out_dtype = dtype(out.getType());
  if (!out_dtype) {
    return refuse<Reason::kOutputType>();
  }
  problem.out_dtype = *out_dtype;
  if (options_.gradient == GradientUse::kAlone) {
    lifted_.out.call_shape = {problem.batch, problem.q_heads, problem.q_len, problem.value_dim};
    lifted_.out.dims = "bhsd";
  }

  FLASHLIFT_ASSIGN_OR_RETURN(const EmptyRows before_extraction,
                             classify_empty_rows(arena_, undropped_, softmax_, data_may_be_infinite()));
  problem.empty_rows = before_extraction;
  FLASHLIFT_RETURN_IF_ERROR(give_empty_rows_their_log_sum_exp());
  // A row of masked scores alone has them in its log-sum-exp.
  Softmax masked = softmax_;
  const FiniteMasks masks = extract_finite_masks(arena_, masked, known_bounds(), lifted_.gradient.has_value());
  if (masks == FiniteMasks::kInRowsWithKeys || (masks == FiniteMasks::kInAllRows && !lifted_.lse)) {
    softmax_ = std::move(masked);
    leave_out_known_conditions();
    auto empty_rows = classify_empty_rows(arena_, undropped_, softmax_, data_may_be_infinite());
    if (!empty_rows.ok() && masks == FiniteMasks::kInAllRows) {
      return empty_rows.error();
    }
    if (!lifted_.lse) {  // with it, each row has a key, and what was found for rows of -inf stays
      problem.empty_rows = empty_rows.ok() ? *empty_rows : EmptyRows::kZero;
    }
  }
  // Conditions on the scores themselves are not mask_mods; as -inf of the score_mod they mean the same.
  std::vector<SymId> guards;
  for (const SymId guard : softmax_.guards) {
    if (arena_[guard].has_score) {
      softmax_.score = arena_.op(Op::k_select, {guard, softmax_.score, arena_.f32(-INFINITY)});
    } else {
      guards.push_back(guard);
    }
  }
  SymId score = softmax_.score;
  problem.scale = extract_scale(arena_, score) * q_.scale * k_.scale;

  program_score_ = score;
  if (guards.empty() && arena_[score].kind == SymKind::kScore) {
    problem.empty_rows = EmptyRows::kZero;  // nothing masks: no row is ever empty
  }

  const auto& leaves = evaluator_->leaves();
  std::set<std::string> names;
  for (size_t i = 0; i < leaves.size(); ++i) {
    std::string name = leaf_name(leaves[i], i);
    name = names.insert(name).second ? name : fmt::format("t{}", i);
    names.insert(name);
    const auto dims = shape(leaves[i]);
    leaf_infos_.push_back(
        {Capture{.name = name, .dtype = *dtype(leaves[i].getType()), .shape = {dims.begin(), dims.end()}}});
  }
  const ProgramEmitter emitter(arena_, roles_, sizes_, leaf_infos_);
  if (arena_[score].kind != SymKind::kScore) {
    FLASHLIFT_ASSIGN_OR_RETURN(problem.score_mod, emitter.score_mod(score));
  }
  if (!guards.empty()) {
    FLASHLIFT_ASSIGN_OR_RETURN(problem.mask_mod, emitter.mask_mod(guards));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(problem.captures, collect_captures(problem.score_mod, problem.mask_mod));
  for (const Capture& capture : problem.captures) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (leaf_infos_[i].capture.name == capture.name) {
        lifted_.captures.push_back(leaves[i]);
      }
    }
  }
  return {};
}

// Elements of the first product are taken to lie within 2^24. Beyond, neighbouring f32 scores are 2 apart, and what a
// softmax gives of them hangs on how the product was rounded; an f16 product twice as large as its bound overflows.
KnownBounds Attempt::known_bounds() const {
  return {.sizes = sizes_,
          .largest_score = dtype(first_->getResult(0).getType()) == DType::kF16 ? 0x1p15 : 0x1p24,
          .leaf = [this](int64_t leaf) { return range_of_constant(evaluator_->leaves()[static_cast<size_t>(leaf)]); }};
}

// A call's log-sum-exp of a row without keys is NaN where the output is, otherwise -inf. The log-sum-exp of jax.nn is
// always -inf; where the output is NaN nevertheless, the call gives zeros that the module replaces.
Proof Attempt::give_empty_rows_their_log_sum_exp() {
  if (!lifted_.lse || is_never_empty()) {
    return {};
  }
  const float value = value_in_empty_row(arena_, log_sum_exp_, softmax_);
  EmptyRows& empty_rows = lifted_.problem.empty_rows;
  if (std::isnan(value) ? empty_rows == EmptyRows::kNan : value == -INFINITY && empty_rows != EmptyRows::kNan) {
    return {};
  }
  if (value == -INFINITY) {
    empty_rows = EmptyRows::kZero;
    lifted_.nan_where_lse_is_minus_infinity = true;
    return {};
  }
  return refuse<Reason::kLogSumExpWithoutKeys>(value);
}

// Whether each row surely has a key whose score is not -inf.
bool Attempt::is_never_empty() {
  const bool data_may_mask = std::any_of(softmax_.key_terms.begin(), softmax_.key_terms.end(),
                                         [&](const SignedTerm& term) { return !loads_of(arena_, term.term).empty(); });
  return !data_may_mask && keeps_a_key(arena_, known_bounds(), softmax_.guards, sizes_[kKeyAtom]);
}

// Probabilities that are masked again by a condition under which alone their keys take part are not changed by that: in
// a row with keys they are 0 without it, and what a row without keys gives is computed from the formula.
void Attempt::leave_out_known_conditions() {
  std::erase_if(softmax_.keep, [&](SymId condition) { return llvm::is_contained(softmax_.guards, condition); });
  undropped_ = without_dropout(arena_, whole_, softmax_);
}

// Which keys dropout leaves is a tensor of the call: the value on the way to the probabilities that is the condition.
// However its bits were made, they are made outside.
Proof Attempt::place_keep_mask() {
  if (softmax_.keep.empty()) {
    return softmax_.keep_factor == 1 ? Proof() : refuse<Reason::kScaledRows>();
  }
  Problem& problem = lifted_.problem;
  if (softmax_.keep_selects && problem.empty_rows == EmptyRows::kNan && !is_never_empty()) {
    return refuse<Reason::kDropoutClearsNan>();
  }
  // Conditions that decide which keys take part may stand in it, too: they change nothing.
  const auto is_wanted = [&](SymId formula) {
    std::vector<SymId> parts;
    add_guard(arena_, parts, formula);
    std::erase_if(parts, [&](SymId part) { return llvm::is_contained(softmax_.guards, part); });
    return std::is_permutation(parts.begin(), parts.end(), softmax_.keep.begin(), softmax_.keep.end());
  };
  for (const Evaluator::Place& place : evaluator_->places()) {
    const bool is_computed = std::any_of(place.indices.begin(), place.indices.end(),
                                         [](const Index& index) { return index.general != kNoSym; });
    if (dtype(place.value.getType()) != DType::kBool || is_computed || !is_wanted(place.formula)) {
      continue;
    }
    const auto tensor = place_tensor(place.value, affine_of(place.indices), evaluator_->atom_sizes());
    if (!tensor) {
      continue;
    }
    OperandView view{.source = place.value, .reshape = {}, .permutation = {}, .dims = {}};
    const std::vector<int> order = tensor->order();
    for (const int atom : order) {
      view.reshape.push_back(sizes_[static_cast<size_t>(atom)]);
    }
    bool fits = true;
    for (const std::vector<int>& atoms : {roles_.batch, roles_.heads(), roles_.query, roles_.key}) {
      const auto present =
          std::count_if(atoms.begin(), atoms.end(), [&](int atom) { return llvm::is_contained(order, atom); });
      fits = fits && (present == 0 || present == static_cast<int64_t>(atoms.size()));
      lifted_.keep_shape.push_back(present == 0 ? 1 : extent(atoms, sizes_));
      for (const int atom : present == 0 ? std::vector<int>{} : atoms) {
        view.permutation.push_back(std::find(order.begin(), order.end(), atom) - order.begin());
      }
    }
    if (!fits || view.permutation.size() != order.size()) {
      lifted_.keep_shape.clear();
      continue;
    }
    lifted_.keep_mask = std::move(view);
    problem.keep_mask = true;
    problem.dropout = 1 - 1 / softmax_.keep_factor;
    return {};
  }
  return softmax_.keep.size() == 1 ? refuse<Reason::kNoKeepMask>() : refuse<Reason::kSeveralKeepConditions>();
}

// Sinks are a tensor of the call: the first value on the way to the probabilities that is their logits and has one
// element for each head, and for each sink if there are several. Looking for a value instead of rebuilding the formula
// takes logits of any dtype and however they are computed.
Proof Attempt::place_sinks() {
  if (softmax_.sinks.empty()) {
    return {};
  }
  if (softmax_.sinks.size() != 1) {
    return refuse<Reason::kSinkPieces>(softmax_.sinks.size());
  }
  const SymId logits = softmax_.sinks[0];
  if (arena_.is_constant(logits)) {
    lifted_.problem.sinks = softmax_.sink_sizes[0];
    lifted_.sinks =
        OperandView{.reshape = {lifted_.problem.q_heads, lifted_.problem.sinks}, .constant = arena_.f32_value(logits)};
    return {};
  }
  std::vector<int> wanted = roles_.heads();
  if (softmax_.sink_atoms[0] >= 0) {
    wanted.push_back(softmax_.sink_atoms[0]);
  }
  for (const Evaluator::Place& place : evaluator_->places()) {
    if (place.formula != logits || !is_sink_source(place.value)) {
      continue;
    }
    const std::vector<int64_t>& sizes = evaluator_->atom_sizes();
    const bool is_computed = std::any_of(place.indices.begin(), place.indices.end(),
                                         [](const Index& index) { return index.general != kNoSym; });
    const auto tensor = is_computed ? std::nullopt : place_tensor(place.value, affine_of(place.indices), sizes);
    const std::vector<int> order = tensor ? tensor->order() : std::vector<int>{};
    if (!tensor || !std::is_permutation(order.begin(), order.end(), wanted.begin(), wanted.end())) {
      continue;
    }
    OperandView view{.source = place.value, .reshape = {}, .permutation = {}, .dims = {}};
    for (const int atom : order) {
      view.reshape.push_back(sizes[static_cast<size_t>(atom)]);
    }
    for (const int atom : order == wanted ? std::vector<int>{} : wanted) {
      view.permutation.push_back(std::find(order.begin(), order.end(), atom) - order.begin());
    }
    lifted_.problem.sinks = softmax_.sink_sizes[0];
    lifted_.sinks = std::move(view);
    return {};
  }
  return refuse<Reason::kNoSinkTensor>();
}

bool Attempt::is_sink_source(mlir::Value value) {
  const auto type = dtype(value.getType());
  mlir::Operation* definition = value.getDefiningOp();
  return (type == DType::kF32 || type == DType::kBF16 || type == DType::kF16) &&
         (definition == nullptr || !depends_(definition));
}

// The indices of a value that has one element a row: one dimension for each atom of the plane, of whatever order.
std::optional<std::vector<Index>> Attempt::row_indices(mlir::Value value) {
  if (!static_tensor(value) || dtype(value.getType()) != DType::kF32) {
    return std::nullopt;
  }
  // Row values keep the order of the scores' dimensions in the first product or of the probabilities; what was
  // transposed later is followed there by uses.
  for (const auto& order : {probability_indices_, evaluator_->score_indices()}) {
    std::vector<Index> indices;
    size_t d = 0;
    const auto dims = shape(value);
    for (const Index& index : order) {
      const bool is_key = evaluator_->runs_over_keys(index.affine);
      const int64_t size = index.affine.is_constant() ? 1 : affine_range(index.affine, sizes_).high + 1;
      if (is_key) {
        continue;
      }
      if (d < dims.size() && dims[d] == size) {
        indices.push_back(index);
        ++d;
      } else if (size != 1) {
        break;
      }
    }
    while (d < dims.size() && dims[d] == 1) {
      indices.push_back(Index{});
      ++d;
    }
    if (d == dims.size() && indices.size() == dims.size()) {
      return indices;
    }
  }
  return std::nullopt;
}

Proof Attempt::find_log_sum_exp(mlir::Value value) {
  const auto indices = row_indices(value);
  if (!indices) {
    return refuse<Reason::kNoRow>();
  }
  FLASHLIFT_ASSIGN_OR_RETURN(Evaluator evaluator, make_evaluator());
  const SymId formula = [&] {
    const SymId again = evaluator.evaluate(second_->getOperand(side_), probability_indices_);
    return again == kNoSym ? kNoSym : evaluator.evaluate(value, *indices);
  }();
  if (formula == kNoSym || !is_log_sum_exp(arena_, formula, softmax_)) {
    return refuse<Reason::kNoLogSumExp>();
  }
  auto placed = place_tensor(value, affine_of(*indices), sizes_);
  if (!placed) {
    return refuse<Reason::kNoStridedRow>();
  }
  for (auto next = placed; next && dtype(next->value.getType()) == DType::kF32;
       next = follow_result(*placed, sizes_, half_)) {
    placed = std::move(next);
  }
  FLASHLIFT_ASSIGN_OR_RETURN(lifted_.lse, result_view(*placed, roles_, value_depth_, sizes_));
  lifted_.problem.want_lse = true;
  log_sum_exp_ = formula;
  return {};
}

// Everything that the scores flow into must end in what the call replaces.
Proof Attempt::check_uses() {
  llvm::DenseSet<mlir::Operation*> seen;
  std::vector<mlir::Operation*> stack{first_};
  while (!stack.empty()) {
    mlir::Operation* op = stack.back();
    stack.pop_back();
    if (!seen.insert(op).second) {
      continue;
    }
    for (const mlir::Value result : op->getResults()) {
      if (result == lifted_.out.replaced || (lifted_.lse && result == lifted_.lse->replaced)) {
        continue;
      }
      if (!lifted_.lse && softmax_.sinks.empty() && !result.use_empty() && kind(op) == OpKind::kAdd &&
          find_log_sum_exp(result).ok()) {
        if (result == lifted_.lse->replaced) {
          continue;
        }
      }
      for (mlir::Operation* user : result.getUsers()) {
        if (!is_removable(user)) {
          return refuse<Reason::kUsedElsewhere>(user->getName().getStringRef().str(), describe(user->getLoc()));
        }
        stack.push_back(user);
      }
    }
  }
  return {};
}

std::string Attempt::summary() const {
  const Problem& p = lifted_.problem;
  std::string text = fmt::format("softmax over {} keys, {} of {} queries x {} heads", p.kv_len,
                                 p.kv_heads == p.q_heads ? "attention" : "grouped attention", p.q_len, p.q_heads);
  const auto note = [&](bool present, std::string_view words) { text += present ? fmt::format(", {}", words) : ""; };
  note(p.score_mod.has_value(), "with a score_mod");
  note(p.mask_mod.has_value(), "with a mask_mod");
  note(p.sinks > 0, "with sinks");
  note(p.keep_mask, "with dropout by the module's own random bits");
  note(p.want_lse, "with the log-sum-exp");
  note(softmax_.maximum == kNoSym, "finite where the module's exponentials overflow or all of a row vanish");
  return text;
}

}  // namespace flashlift::stablehlo
