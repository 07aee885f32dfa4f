// Stage 6: keeps the module's roundings of scores to 16 bits where large numbers are added to them.
//
// A fused call computes scores in f32, which usually is only more accurate. It is not if a large negative number is
// added to all scores of a row: the row's result then depends on the bits of the scores that the rounding removes, or
// on its overflow.
#include <algorithm>
#include <map>
#include <set>

#include "score/operation.h"
#include "stablehlo/lift/products.h"
#include "stablehlo/lift/stages.h"

namespace flashlift::stablehlo {
namespace {

template <typename T>
std::vector<T> sorted(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values;
}

// Above this, roundings change scores by 1/16 or more.
double largest_fine(DType half) { return half == DType::kBF16 ? 0x1p4 : 0x1p7; }

// Whether numbers other than the product may make scores so large that roundings are that coarse. With `at_roundings`,
// only rounded parts of the formula count, otherwise all parts.
bool reaches_far(const Plane& plane, SymId formula, const KnownBounds& of_plane, bool at_roundings) {
  const SymArena& arena = plane.arena;
  KnownBounds known = of_plane;
  known.largest_score = 1;
  Bounds bounds(arena, known);
  const double most = largest_fine(*plane.half);
  return any_part({formula}, [&](SymId id, std::vector<SymId>& next) {
    const Sym& sym = arena[id];
    if (!sym.has_score || sym.kind != SymKind::kOp) {
      return false;
    }
    arena.push_args(id, next);
    if (sym.type != Type::kF32 || (at_roundings && !score::is_any(sym.op, {Op::k_round_bf16, Op::k_round_f16}))) {
      return false;
    }
    const auto range = bounds.finite(at_roundings ? sym.args[0] : id);
    return !range || range->real_lo < -most || range->real_hi > most;
  });
}

// Returns the c of (x - m) c, which was rewritten to x c - m c.
SymId factor_of_scores(SymArena& arena, const Softmax& softmax) {
  if (softmax.subtracted.size() == 1 && arena.is_op(softmax.subtracted[0].term, Op::k_mul)) {
    for (const SymId arg : arena[softmax.subtracted[0].term].args) {
      if (arena.is_constant(arg)) {
        return arg;
      }
    }
  }
  return arena.f32(1.0F);
}

// For each exponential, the nearest value before it that is the masked score. The row maximum may be computed from
// other values with other roundings, since it cancels.
std::vector<Evaluator::Place> exponents(Plane& plane, const Softmax& softmax, SymId factor) {
  SymArena& arena = plane.arena;
  std::map<const void*, std::vector<Evaluator::Place>> by_value;
  std::vector<mlir::Value> stack;
  const std::vector<Evaluator::Place> places = plane.evaluator->places();
  for (const Evaluator::Place& place : places) {
    const Sym& sym = arena[place.formula];
    if (sym.type == Type::kF32 && sym.has_score && arena.depends_on(place.formula, kKeyAtom)) {
      by_value[place.value.getAsOpaquePointer()].push_back(place);
      mlir::Value value = place.value;
      if (value.getDefiningOp() != nullptr && is_exponential(value.getDefiningOp())) {
        stack.push_back(value);
      }
    }
  }
  const auto is_exponent = [&](SymId formula) {
    const Product logit = as_exponent(arena, arena.op(Op::k_mul, {formula, factor}));
    return logit.over.empty() && logit.times.empty() && sorted(logit.guards) == sorted(softmax.guards) &&
           sorted(logit.exponent) == sorted(softmax.key_terms);
  };
  std::vector<Evaluator::Place> found;
  std::set<const void*> seen;
  while (!stack.empty()) {
    const mlir::Value value = stack.back();
    stack.pop_back();
    const auto here = by_value.find(value.getAsOpaquePointer());
    if (here == by_value.end() || !seen.insert(value.getAsOpaquePointer()).second) {
      continue;
    }
    const auto exponent = std::find_if(here->second.begin(), here->second.end(),
                                       [&](const Evaluator::Place& place) { return is_exponent(place.formula); });
    mlir::Operation* op = value.getDefiningOp();
    if (exponent != here->second.end()) {
      found.push_back(*exponent);
    } else if (op != nullptr) {
      stack.insert(stack.end(), op->operand_begin(), op->operand_end());
    }
  }
  return found;
}

}  // namespace

bool rounds_coarsely(const Plane& plane, SymId score, const KnownBounds& known) {
  return plane.half && reaches_far(plane, score, known, true);
}

Outcome<SymId> with_roundings(Plane& plane, const Softmax& softmax, const KnownBounds& known) {
  SymArena& arena = plane.arena;
  if (plane.evaluator->unrounded().empty()) {
    return softmax.score;
  }
  const SymId factor = factor_of_scores(arena, softmax);
  std::set<SymId> found;
  for (const Evaluator::Place& place : exponents(plane, softmax, factor)) {
    SymId rounded = plane.evaluator->evaluate_with_roundings(place.value, place.indices);
    for (const SymId guard : rounded == kNoSym ? std::vector<SymId>() : softmax.guards) {
      rounded = assume(arena, rounded, guard);
    }
    if (rounded != kNoSym) {
      found.insert(arena.op(Op::k_mul, {rounded, factor}));
    }
  }
  const bool matters = found.empty() ? reaches_far(plane, softmax.score, known, false)
                                     : std::any_of(found.begin(), found.end(), [&](SymId rounded) {
                                         return rounds_coarsely(plane, rounded, known);
                                       });
  if (!matters) {
    return softmax.score;
  }
  return found.size() == 1 ? Outcome<SymId>(*found.begin()) : refuse<Reason::kRoundsBesideMasks>();
}

}  // namespace flashlift::stablehlo
