// Stage 3: matches the probabilities with a softmax, whose division by the row sum may come after the second product.
#include <algorithm>
#include <cmath>
#include <set>

#include "score/operation.h"
#include "stablehlo/lift/stages.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// Formulas do not contain the roundings of scores to 16 bits. A maximum of rounded scores may be larger than all
// unrounded ones: then the exponentials of a row may sum to less than 1.
Proof check_maximum(const Plane& plane, const Softmax& softmax) {
  const auto body = softmax.needs_maximum ? body_of_maximum(plane.arena, softmax) : std::nullopt;
  const auto is_narrow = [](mlir::Value value) { return dtype(value.getType()) != DType::kF32; };
  const auto comes_from_narrow = [&](mlir::Value value) {
    mlir::Operation* op = value.getDefiningOp();
    return op != nullptr && kind(op) == OpKind::kConvert && is_narrow(op->getOperand(0));
  };
  bool has_narrow = false;
  bool reads_wide = false;
  for (const Evaluator::Place& place : plane.evaluator->places()) {
    if (!body || place.formula != *body) {
      continue;
    }
    mlir::Value value = place.value;
    has_narrow = has_narrow || is_narrow(value);
    if (!is_narrow(value) && !comes_from_narrow(value)) {
      reads_wide = reads_wide || llvm::any_of(value.getUsers(), [&](mlir::Operation* user) {
                     return kind(user) != OpKind::kConvert || !is_narrow(user->getResult(0));
                   });
    }
  }
  return has_narrow && reads_wide ? refuse<Reason::kRoundedMaximum>() : Proof();
}

// Whether rounding the operand to 16 bits may change the result discontinuously. Comparisons with 0, infinity and the
// operand itself (is it NaN?) are safe, because rounding keeps these numbers and makes no other number 0.
bool steps_at_roundings(const SymArena& arena, const Sym& sym) {
  if (sym.kind == SymKind::kLoad) {
    return true;  // the index of a table: another index reads another element
  }
  const bool is_continuous =
      score::is_any(sym.op, {Op::k_select, Op::k_min, Op::k_max, Op::k_abs, Op::k_sign, Op::k_to_i1, Op::k_is_finite});
  if (sym.kind != SymKind::kOp || is_continuous || arena[sym.args[0]].type != Type::kF32) {
    return false;
  }
  if (sym.type == Type::kF32) {
    return !score::is_smooth(score::operation(sym.op).shape);
  }
  const bool is_with_itself = sym.args.size() == 2 && sym.args[0] == sym.args[1];
  return !is_with_itself && std::none_of(sym.args.begin(), sym.args.end(), [&](SymId arg) {
    return arena.is_constant(arg) && (is_zero(arena, arg) || std::isinf(arena.f32_value(arg)));
  });
}

// Whether one of the operands depends on any of these.
bool reads_any(const SymArena& arena, const Sym& sym, const std::set<SymId>& wanted) {
  return any_part(sym.args, [&](SymId id, std::vector<SymId>& next) {
    if (arena[id].has_score) {
      arena.push_args(id, next);
    }
    return wanted.contains(id);
  });
}

// Roundings of scores may be ignored only if what follows is continuous. A step (a rounding to whole numbers, the index
// of a table, a comparison) may have a very different result for a slightly different score.
Proof check_steps(const Plane& plane, const Softmax& softmax) {
  const SymArena& arena = plane.arena;
  const std::set<SymId>& unrounded = plane.evaluator->unrounded();
  if (unrounded.empty()) {
    return {};
  }
  std::vector<SymId> formulas = softmax.guards;
  for (const SignedTerm& term : softmax.key_terms) {
    formulas.push_back(term.term);
  }
  const bool steps = any_part(std::move(formulas), [&](SymId id, std::vector<SymId>& next) {
    if (!arena[id].has_score) {
      return false;
    }
    arena.push_args(id, next);
    return steps_at_roundings(arena, arena[id]) && reads_any(arena, arena[id], unrounded);
  });
  if (steps) {
    return refuse<Reason::kStepsOfRounded>();
  }
  return {};
}

// nan_to_num of the probabilities sets rows without keys to 0, and also those that are NaN because a tensor that the
// score reads is +inf or NaN. A call leaves the latter NaN. A condition on rows that fails for NaN has the same effect.
Proof check_clean_up(const Plane& plane, const Match& match) {
  if (!scores_may_be_infinite(plane, match.softmax)) {
    return {};
  }
  if (match.softmax.clears_nan) {
    return refuse<Reason::kConditionClearsNan>();
  }
  return clears_nan(plane.arena, match.whole) ? refuse<Reason::kClearsNan>() : Proof();
}

Proof match_product(Plane& plane, const Product& product, Match& match) {
  FLASHLIFT_ASSIGN_OR_RETURN(match.softmax, match_softmax(plane.arena, product));
  return check_maximum(plane, match.softmax);
}

// Divisions and multiplications of the output's gradient by the output's divisor, whatever shape the divisor is
// broadcast to. The gradient may be computed from the row log-sum-exp, which the call gives.
std::vector<mlir::Operation*> divided_gradients(Plane& plane, const Probabilities& probabilities,
                                                const Softmax& softmax, mlir::Operation* division,
                                                mlir::Value divisor) {
  while (mlir::Operation* op = divisor.getDefiningOp()) {
    if (kind(op) != OpKind::kBroadcastInDim && kind(op) != OpKind::kReshape && kind(op) != OpKind::kTranspose) {
      break;
    }
    divisor = op->getOperand(0);
  }
  std::vector<mlir::Operation*> given = log_sum_exps_of(plane, probabilities, softmax, divisor);
  given.insert(given.end(), {plane.pair.second, division});
  DependsOn depends(plane.pair.first, std::move(given));
  std::vector<mlir::Operation*> found;
  llvm::DenseSet<mlir::Operation*> seen{division};
  std::vector<mlir::Value> stack{divisor};
  while (!stack.empty()) {
    const mlir::Value value = stack.back();
    stack.pop_back();
    for (mlir::OpOperand& use : value.getUses()) {
      mlir::Operation* const user = use.getOwner();
      if (user->getBlock() != division->getBlock() || !seen.insert(user).second) {
        continue;
      }
      const OpKind how = kind(user);
      if (how == OpKind::kBroadcastInDim || how == OpKind::kReshape || how == OpKind::kTranspose) {
        stack.push_back(user->getResult(0));
      } else if (how == kind(division) && (how != OpKind::kDivide || use.getOperandNumber() == 1) &&
                 static_tensor(user->getResult(0)) &&
                 static_tensor(user->getResult(0)).getNumElements() ==
                     static_tensor(division->getResult(0)).getNumElements() &&
                 !depends(user->getOperand(1 - use.getOperandNumber()).getDefiningOp())) {
        found.push_back(user);
      }
    }
  }
  return found;
}

// Reads the output after its division or multiplication by a number of the row.
Proof divide_by(Plane& plane, const Probabilities& probabilities, const Operands& operands, mlir::Operation* user,
                Product product, Match& match) {
  PlacedTensor& out = *match.out;
  const bool divides = kind(user) == OpKind::kDivide && user->getOperand(0) == out.value;
  if ((!divides && kind(user) != OpKind::kMultiply) || user->getBlock() != plane.pair.second->getBlock()) {
    return refuse<Reason::kNotDivided>();
  }
  const unsigned other = user->getOperand(0) == out.value ? 1 : 0;
  const std::vector<Index> places = indices_of(out, plane.sizes);
  std::optional<Refusal> refusal;
  const bool is_alone = out.value.hasOneUse();
  const SymId factor = is_alone ? plane.evaluator->evaluate(user->getOperand(other), places)
                                : plane.evaluator->try_evaluate(user->getOperand(other), places, refusal);
  if (factor == kNoSym && is_alone) {
    plane.request_split(plane.evaluator->split_request());
    return plane.evaluator->why_not();
  }
  if (factor == kNoSym) {
    return *refusal;
  }
  for (const int atom : operands.value_depth) {
    if (plane.arena.depends_on(factor, atom)) {
      return refuse<Reason::kOutputDivisor>();
    }
  }
  if (divides) {
    divide(plane.arena, product, factor);
    match.whole = plane.arena.op(Op::k_div, {probabilities.formula, factor});
  } else {
    multiply(product, as_product(plane.arena, factor));
    match.whole = plane.arena.op(Op::k_mul, {probabilities.formula, factor});
  }
  FLASHLIFT_RETURN_IF_ERROR(match_product(plane, product, match));
  match.divides_output = true;
  out.value = user->getResult(0);
  if (plane.options.gradient == GradientUse::kBesideOutput) {
    plane.divided = divided_gradients(plane, probabilities, match.softmax, user, user->getOperand(other));
    plane.divided.insert(plane.divided.begin(), user);
    plane.divided_depth = operands.value_depth;
    plane.depends = DependsOn(plane.pair.first, plane.outputs());
  }
  return {};
}

// Follows the second product's result through transposes to a division by the row sum. The divisor's gradient may read
// the result, too.
Proof find_division(Plane& plane, const Probabilities& probabilities, const Operands& operands, const Product& product,
                    Match& match) {
  while (auto next = follow_result(*match.out, plane.sizes, plane.half)) {
    match.out = std::move(next);
  }
  mlir::Value undivided = match.out->value;
  if (!undivided.hasOneUse() && plane.options.gradient != GradientUse::kBesideOutput) {
    return refuse<Reason::kNotDivided>();
  }
  Proof refusal = refuse<Reason::kNotDivided>();
  for (mlir::Operation* user : undivided.getUsers()) {
    Match divided = match;
    Proof proof = divide_by(plane, probabilities, operands, user, product, divided);
    if (proof.ok()) {
      match = std::move(divided);
      return proof;
    }
    // Other users are no divisions, which says less.
    if (proof.error().reason != Reason::kNotDivided) {
      refusal = std::move(proof);
    }
  }
  return refusal;
}

}  // namespace

void leave_out_known_conditions(SymArena& arena, Match& match) {
  std::erase_if(match.softmax.keep,
                [&](SymId condition) { return llvm::is_contained(match.softmax.guards, condition); });
  match.undropped = without_dropout(arena, match.whole, match.softmax);
}

Outcome<Match> match_probabilities(Plane& plane, const Probabilities& probabilities, const Operands& operands) {
  Match match{.whole = probabilities.formula, .softmax = {}, .out = operands.out};
  Product product = as_product(plane.arena, probabilities.formula);
  if (const Proof matched = match_product(plane, product, match); !matched.ok()) {
    const bool is_divided =
        std::ranges::any_of(product.over, [&](SymId factor) { return !plane.arena.is_constant(factor); });
    if (!operands.out || is_divided) {
      return matched.error();
    }
    if (const Proof divided = find_division(plane, probabilities, operands, product, match); !divided.ok()) {
      const bool tells_more =
          matched.error().reason == Reason::kNotDivided || divided.error().reason == Reason::kOwnWeightsInSum;
      return tells_more ? divided.error() : matched.error();
    }
  }
  FLASHLIFT_RETURN_IF_ERROR(check_steps(plane, match.softmax));
  FLASHLIFT_RETURN_IF_ERROR(check_clean_up(plane, match));
  leave_out_known_conditions(plane.arena, match);
  return match;
}

}  // namespace flashlift::stablehlo
