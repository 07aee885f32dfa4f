// Stage 6: the problem of the forward call with its programs, and the results of rows without keys.
#include <algorithm>
#include <cmath>
#include <set>

#include "problem/sizes.h"
#include "stablehlo/lift/stages.h"
#include "stablehlo/reader/module.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// A readable name for a captured tensor: the argument's name, or a number.
std::string leaf_name(mlir::Value value, size_t number) {
  if (const auto argument = llvm::dyn_cast<mlir::BlockArgument>(value)) {
    return fmt::format("arg{}", argument.getArgNumber());
  }
  return fmt::format("t{}", number);
}

std::vector<LeafInfo> name_leaves(const std::vector<mlir::Value>& leaves) {
  std::vector<LeafInfo> infos;
  std::set<std::string> names;
  for (size_t i = 0; i < leaves.size(); ++i) {
    std::string name = leaf_name(leaves[i], i);
    name = names.insert(name).second ? name : fmt::format("t{}", i);
    names.insert(name);
    const auto dims = shape(leaves[i]);
    infos.push_back({Capture{.name = name, .dtype = *dtype(leaves[i].getType()), .shape = {dims.begin(), dims.end()}}});
  }
  return infos;
}

// The range of a constant's elements, if they are f32 or 16-bit numbers.
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

// Elements of the first product are assumed to lie within 2^24. Beyond, neighbouring f32 scores are 2 apart, so that
// the softmax depends on how the product is rounded. The bound for f16 is 2^15, because a product twice as large
// overflows.
KnownBounds known_bounds(const Plane& plane) {
  return {.sizes = plane.sizes,
          .largest_score = dtype(plane.pair.first->getResult(0).getType()) == DType::kF16 ? 0x1p15 : 0x1p24,
          .leaf = [&plane](int64_t leaf) {
            return range_of_constant(plane.evaluator->leaves()[static_cast<size_t>(leaf)]);
          }};
}

Outcome<Problem> sizes_of_problem(const Plane& plane, const Forward& forward, const Gradient* gradient) {
  const Roles& roles = forward.dimensions.roles;
  Problem problem;
  problem.batch = extent(roles.batch, plane.sizes);
  problem.kv_heads = extent(roles.kv_head, plane.sizes);
  problem.q_heads = extent(roles.heads(), plane.sizes);
  problem.q_len = extent(roles.query, plane.sizes);
  problem.kv_len = plane.sizes[kKeyAtom];
  problem.head_dim = extent(forward.operands.depth, plane.sizes);
  problem.value_dim = extent(forward.operands.value_depth, plane.sizes);
  if (std::max(problem.head_dim, problem.value_dim) > problem::kMostDepth) {
    return refuse<Reason::kTooDeep>(problem.head_dim, problem.value_dim, problem::kMostDepth);
  }
  problem.dtype = *dtype(mlir::Value(forward.dimensions.q.value).getType());
  mlir::Value out = forward.dimensions.out ? forward.dimensions.out->value : gradient->d_out_operand.value;
  const auto out_dtype = dtype(out.getType());
  if (!out_dtype) {
    return refuse<Reason::kOutputType>();
  }
  problem.out_dtype = *out_dtype;
  return problem;
}

EmptiedBy what_empties(Plane& plane, const Softmax& softmax) {
  const bool keeps =
      softmax.guards.empty() || keeps_a_key(plane.arena, known_bounds(plane), softmax.guards, plane.sizes[kKeyAtom]);
  return {.conditions = !keeps, .data = scores_may_be_infinite(plane, softmax)};
}

// Checks that the call gives rows without keys the same log-sum-exp as the module. A call's log-sum-exp is NaN in such
// rows if the output is NaN, otherwise -inf. That of jax.nn is always -inf; if its output is NaN nevertheless, the call
// returns zeros, which the rewritten module replaces by NaN.
Proof give_empty_rows_their_log_sum_exp(Plane& plane, const std::optional<LogSumExp>& log_sum_exp, Programs& programs) {
  if (!log_sum_exp || is_never_empty(plane, programs.match.softmax)) {
    return {};
  }
  const Softmax& softmax = programs.match.softmax;
  const std::optional<float> value =
      value_in_empty_row(plane.arena, plane.sizes, log_sum_exp->formula, softmax, what_empties(plane, softmax));
  if (!value) {
    return refuse<Reason::kLogSumExpWithoutKeys>("no one number");
  }
  EmptyRows& empty_rows = programs.problem.empty_rows;
  if (std::isnan(*value) ? empty_rows == EmptyRows::kNan : *value == -INFINITY && empty_rows != EmptyRows::kNan) {
    return {};
  }
  if (*value == -INFINITY) {
    empty_rows = EmptyRows::kZero;
    programs.nan_where_lse_is_minus_infinity = true;
    return {};
  }
  return refuse<Reason::kLogSumExpWithoutKeys>(*value);
}

// Whether the score may contain large numbers that do not come from the product, such as those of a mask in a float
// tensor.
bool may_add_much(const Plane& plane, SymId score) {
  constexpr double kMuch = 0x1p16;  // if this is added to a sum, its logarithm keeps 7 bits after the binary point
  KnownBounds known = known_bounds(plane);
  known.largest_score = 1;
  const auto range = Bounds(plane.arena, known).finite(score);
  return !range || range->real_lo < -kMuch || range->real_hi > kMuch;
}

// Determines the results of rows without keys, and turns finite masks into guards.
Proof settle_masks(Plane& plane, const std::optional<LogSumExp>& log_sum_exp, bool has_gradient, Programs& programs) {
  SymArena& arena = plane.arena;
  Match& match = programs.match;
  const SymId unrounded = match.softmax.score;
  FLASHLIFT_ASSIGN_OR_RETURN(match.softmax.score, with_roundings(plane, match.softmax, known_bounds(plane)));
  FLASHLIFT_ASSIGN_OR_RETURN(
      programs.problem.empty_rows,
      classify_empty_rows(arena, plane.sizes, match.undropped, match.softmax, what_empties(plane, match.softmax)));
  FLASHLIFT_RETURN_IF_ERROR(give_empty_rows_their_log_sum_exp(plane, log_sum_exp, programs));
  // In a row that has only masked scores, the log-sum-exp contains them.
  Softmax masked = match.softmax;
  const FiniteMasks masks = extract_finite_masks(arena, masked, known_bounds(plane), has_gradient);
  const bool keeps_keys = masks == FiniteMasks::kInRowsWithKeys;
  const auto where = [&](SymId score, const std::vector<SymId>& conditions) {
    for (const SymId condition : conditions) {
      score = assume(arena, score, condition);
    }
    return score;
  };
  const auto may_be_far = [&](SymId score) {  // whether all scores of a row may be large
    score = where(score, keeps_keys ? masked.guards : std::vector<SymId>());
    return (!keeps_keys && has_finite_masks(arena, score)) || may_add_much(plane, score);
  };
  if (match.softmax.rounds_logarithm && may_be_far(match.softmax.score)) {
    return refuse<Reason::kLogSumExpOfMasks>();
  }
  for (const SymId difference : match.softmax.apart) {
    std::vector<SignedTerm> terms = as_exponent(arena, difference).exponent;
    std::erase_if(terms, [&](const SignedTerm& term) { return !arena.depends_on(term.term, kKeyAtom); });
    if (may_be_far(sum_of(arena, terms))) {
      return refuse<Reason::kAddsApart>();
    }
  }
  if (masks == FiniteMasks::kInRowsWithKeys || (masks == FiniteMasks::kInAllRows && !log_sum_exp)) {
    match.softmax = std::move(masked);
    if (!rounds_coarsely(plane, match.softmax.score, known_bounds(plane))) {
      match.softmax.score = where(unrounded, match.softmax.guards);
    }
    const std::vector<SymId> keep = match.softmax.keep;
    leave_out_known_conditions(arena, match);
    const auto classify = [&] {
      return classify_empty_rows(arena, plane.sizes, match.undropped, match.softmax,
                                 what_empties(plane, match.softmax));
    };
    auto empty_rows = classify();
    if (!empty_rows.ok() && empty_rows.error().reason == Reason::kRowsEmptiedByOneMask) {
      match.softmax.keep = keep;  // a condition that only some masked keys meet has an effect in a row without keys
      match.undropped = without_dropout(arena, match.whole, match.softmax);
      empty_rows = classify();
    }
    if (!empty_rows.ok() && masks == FiniteMasks::kInAllRows) {
      return empty_rows.error();
    }
    if (!log_sum_exp) {  // if there is one, each row has a key, and the result for rows of -inf stays
      programs.problem.empty_rows = empty_rows.ok() ? *empty_rows : EmptyRows::kZero;
    }
  }
  return {};
}

// Whether a constant of the module makes scores +inf or NaN for any tensors of ordinary numbers. Such a row is NaN. So
// is its gradient of each score, except those that a select replaced: there a call would compute NaN times 0.
bool has_infinite_constant(const Plane& plane, SymId score) {
  const SymArena& arena = plane.arena;
  const auto range_of_leaf = [&](int64_t leaf) -> std::optional<score::Interval> {
    mlir::Value value = plane.evaluator->leaves()[static_cast<size_t>(leaf)];
    const auto type = dtype(value.getType());
    const auto of_constant = range_of_constant(value);
    return of_constant || !type || scalar_type(*type) != Type::kF32 ? of_constant : score::Interval::real(0.5, 1);
  };
  const KnownBounds known{.sizes = plane.sizes, .largest_score = 1, .leaf = range_of_leaf};
  Bounds bounds(arena, known);
  const score::Interval whole = bounds.of(score);
  if (!whole.may_be_nan && whole.real_hi < INFINITY) {
    return false;
  }
  return any_part({score}, [&](SymId id, std::vector<SymId>& next) {
    const Sym& sym = arena[id];
    const bool is_number = sym.kind == SymKind::kConstant || sym.kind == SymKind::kLoad;
    next.insert(next.end(), sym.args.begin(), sym.args.end());
    return is_number && sym.type == Type::kF32 && !bounds.finite(id);
  });
}

}  // namespace

bool is_never_empty(Plane& plane, const Softmax& softmax) {
  return !scores_may_be_infinite(plane, softmax) &&
         keeps_a_key(plane.arena, known_bounds(plane), softmax.guards, plane.sizes[kKeyAtom]);
}

bool keeps_a_key(Plane& plane, SymId condition) {
  return keeps_a_key(plane.arena, known_bounds(plane), {condition}, plane.sizes[kKeyAtom]);
}

std::vector<SymId> masks_of_whole_rows(Plane& plane, const Softmax& softmax) {
  return masks_of_whole_rows(plane.arena, known_bounds(plane), softmax.score);
}

bool scores_may_be_infinite(const Plane& plane, const Softmax& softmax) {
  const KnownBounds known = known_bounds(plane);
  return !Bounds(plane.arena, known).finite(softmax.score);
}

Outcome<Programs> build_programs(Plane& plane, const Forward& forward, const std::optional<LogSumExp>& log_sum_exp,
                                 const Gradient* gradient) {
  SymArena& arena = plane.arena;
  Programs programs{.problem = {}, .match = forward.match};
  Problem& problem = programs.problem;
  FLASHLIFT_ASSIGN_OR_RETURN(problem, sizes_of_problem(plane, forward, gradient));
  problem.want_lse = log_sum_exp || gradient != nullptr;  // the backward pass reads it
  programs.match.softmax.rounds_logarithm |= gradient != nullptr && gradient->rounds_logarithm;
  if (gradient != nullptr) {
    llvm::append_range(programs.match.softmax.apart, gradient->apart);
  }
  FLASHLIFT_RETURN_IF_ERROR(settle_masks(plane, log_sum_exp, gradient != nullptr, programs));
  if (gradient != nullptr && has_infinite_constant(plane, programs.match.softmax.score)) {
    return refuse<Reason::kInfiniteScore>();
  }
  // A condition on the scores cannot be a mask_mod. Instead, the score_mod returns -inf where it fails, which is
  // equivalent.
  Softmax& softmax = programs.match.softmax;
  std::vector<SymId> guards;
  for (const SymId guard : softmax.guards) {
    if (arena[guard].has_score) {
      softmax.score = arena.op(Op::k_select, {guard, softmax.score, arena.f32(-INFINITY)});
    } else {
      guards.push_back(guard);
    }
  }
  programs.score = softmax.score;
  problem.scale = extract_scale(arena, programs.score) * forward.dimensions.q.scale * forward.dimensions.k.scale;
  const bool is_plain = arena[programs.score].kind == SymKind::kScore;
  if (guards.empty() && is_plain) {
    problem.empty_rows = EmptyRows::kZero;  // nothing masks: no row is ever empty
  }
  const auto& leaves = plane.evaluator->leaves();
  programs.leaves = name_leaves(leaves);
  const ProgramEmitter emitter(arena, forward.dimensions.roles, plane.sizes, programs.leaves);
  if (!is_plain) {
    FLASHLIFT_ASSIGN_OR_RETURN(problem.score_mod, emitter.score_mod(programs.score));
  }
  if (!guards.empty()) {
    FLASHLIFT_ASSIGN_OR_RETURN(problem.mask_mod, emitter.mask_mod(guards));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(problem.captures, collect_captures(problem.score_mod, problem.mask_mod));
  for (const Capture& capture : problem.captures) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (programs.leaves[i].capture.name == capture.name) {
        programs.captures.push_back(leaves[i]);
      }
    }
  }
  return programs;
}

}  // namespace flashlift::stablehlo
