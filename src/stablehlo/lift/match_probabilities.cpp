// Stage 3: the softmax that the probabilities are, where the division by the row sum may stand behind the second
// product.
#include <algorithm>

#include "stablehlo/lift/products.h"
#include "stablehlo/lift/stages.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// Formulas do not show where scores are rounded to 16 bits. A maximum of rounded scores may lie above those that are
// not: then no row need sum to 1.
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

// nan_to_num of probabilities clears the rows that have no keys, and others that are NaN: those in which a tensor that
// the score reads is +inf or NaN. A call leaves these NaN. So does a condition on rows that no NaN fulfils.
Proof check_clean_up(const Plane& plane, const Match& match) {
  if (!data_may_be_infinite(plane, match.softmax)) {
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

// The second product's result on its way through transposes to a division by the row sum.
Proof find_division(Plane& plane, const Operands& operands, SymId probability, Product& product, Match& match) {
  PlacedTensor& out = *match.out;
  while (auto next = follow_result(out, plane.sizes, plane.half)) {
    out = std::move(*next);
  }
  if (!out.value.hasOneUse()) {
    return refuse<Reason::kNotDivided>();
  }
  mlir::Operation* user = *out.value.getUsers().begin();
  const bool divides = kind(user) == OpKind::kDivide && user->getOperand(0) == out.value;
  if ((!divides && kind(user) != OpKind::kMultiply) || user->getBlock() != plane.pair.second->getBlock()) {
    return refuse<Reason::kNotDivided>();
  }
  const unsigned other = user->getOperand(0) == out.value ? 1 : 0;
  const SymId factor = plane.evaluator->evaluate(user->getOperand(other), indices_of(out, plane.sizes));
  if (factor == kNoSym) {
    plane.request_split(plane.evaluator->split_request());
    return plane.evaluator->why_not();
  }
  for (const int atom : operands.value_depth) {
    if (plane.arena.depends_on(factor, atom)) {
      return refuse<Reason::kOutputDivisor>();
    }
  }
  if (divides) {
    divide(plane.arena, product, factor);
    match.whole = plane.arena.op(Op::k_div, {probability, factor});
  } else {
    multiply(product, as_product(plane.arena, factor));
    match.whole = plane.arena.op(Op::k_mul, {probability, factor});
  }
  FLASHLIFT_RETURN_IF_ERROR(match_product(plane, product, match));
  out.value = user->getResult(0);
  return {};
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
    if (!operands.out || !product.over.empty()) {
      return matched.error();
    }
    if (const Proof divided = find_division(plane, operands, probabilities.formula, product, match); !divided.ok()) {
      return product.over.empty() ? matched.error() : divided.error();
    }
  }
  FLASHLIFT_RETURN_IF_ERROR(check_clean_up(plane, match));
  leave_out_known_conditions(plane.arena, match);
  return match;
}

}  // namespace flashlift::stablehlo
