#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "score/scalar.h"
#include "stablehlo/lift/softmax.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Numbers for a row all of whose keys are masked.
class EmptyRowEvaluator {
 public:
  // masked_scores: the data masks, not a condition.
  EmptyRowEvaluator(const SymArena& arena, std::map<SymId, score::Scalar<float>> known, bool masked_scores)
      : arena_(arena), values_(std::move(known)), masked_(masked_scores) {}

  score::Scalar<float> evaluate(SymId id) {
    if (const auto found = values_.find(id); found != values_.end()) {
      return found->second;
    }
    const Sym& sym = arena_[id];
    score::Scalar<float> value;
    switch (sym.kind) {
      case SymKind::kConstant:
        value.i = sym.payload;
        value.f = sym.type == Type::kF32 ? arena_.f32_value(id) : 0.0f;
        break;
      case SymKind::kAtom:
        value.i = 1;
        break;
      case SymKind::kScore:  // where a term was rewritten and is not found in the formula, this masks it
        value.f = masked_ ? -kInfinity : 0.5f;
        break;
      case SymKind::kLoad:
        value = {.i = 1, .f = 0.25f};
        break;
      case SymKind::kOp: {
        std::vector<score::Scalar<float>> args;
        for (const SymId arg : sym.args) {
          args.push_back(evaluate(arg));
        }
        value = score::apply<float>(sym.op, sym.type, arena_[sym.args.back()].type, args);
        break;
      }
      case SymKind::kReduce:
        value = evaluate_reduce(id);
        break;
    }
    values_.emplace(id, value);
    return value;
  }

 private:
  score::Scalar<float> evaluate_reduce(SymId id) {
    score::Scalar<float> result;
    bool first = true;
    for (const ReducePiece& piece : arena_.pieces(id)) {
      const score::Scalar<float> body = evaluate(piece.body);
      const int copies = arena_.reduce_kind(id) == ReduceKind::kAdd && piece.size > 1 ? kKeys : 1;
      for (int copy = 0; copy < copies; ++copy) {
        result = first ? body : combine(arena_.reduce_kind(id), result, body, arena_[id].type);
        first = false;
      }
    }
    return result;
  }

  static score::Scalar<float> combine(ReduceKind kind, score::Scalar<float> x, score::Scalar<float> y, Type type) {
    static constexpr Op kOps[] = {Op::k_add, Op::k_max, Op::k_min, Op::k_and, Op::k_or};
    const score::Scalar<float> both[] = {x, y};
    return score::apply<float>(kOps[static_cast<size_t>(kind)], type, type, both);
  }

 public:
  static constexpr int kKeys = 4;  // of the imagined row

 private:
  const SymArena& arena_;
  std::map<SymId, score::Scalar<float>> values_;
  bool masked_;
};

}  // namespace

Result<EmptyRows> classify_empty_rows(SymArena& arena, SymId probability, const Softmax& softmax) {
  if (!softmax.sinks.empty()) {
    return EmptyRows::kZero;  // a sink keeps every row from being empty
  }
  std::map<SymId, score::Scalar<float>> known;
  for (const SymId guard : softmax.guards) {
    if (arena.is_op(guard, Op::k_not)) {
      known[arena[guard].args[0]] = {.i = 1, .f = 0};
    }
    known[guard] = {.i = 0, .f = 0};
  }
  if (softmax.guards.empty()) {  // the data alone may mask: an added -inf
    for (const SignedTerm& term : softmax.key_terms) {
      known[term.term] = {.i = 0, .f = term.negative ? kInfinity : -kInfinity};
    }
  }
  EmptyRowEvaluator evaluator(arena, std::move(known), softmax.guards.empty());
  const float value = evaluator.evaluate(probability).f;
  if (std::isnan(value)) {
    return EmptyRows::kNan;
  }
  if (value == 0) {
    return EmptyRows::kZero;
  }
  if (std::abs(value - 1.0f / EmptyRowEvaluator::kKeys) < 1e-5f) {
    return EmptyRows::kUniform;
  }
  return unsupported("a row without any key left gives neither 0, nor the mean of the values, nor NaN");
}

namespace {

// The condition under which a formula is not the very negative constant that it is otherwise, and what it is then.
struct FiniteMask {
  SymId kept_when = kNoSym;
  SymId kept = kNoSym;
};

std::optional<FiniteMask> read_finite_mask(SymArena& arena, SymId formula, float at_most) {
  if (!arena.is_op(formula, Op::k_select)) {
    return std::nullopt;
  }
  const std::vector<SymId> args = arena[formula].args;
  if (arena[args[0]].has_score) {
    return std::nullopt;
  }
  for (const auto& [masked, kept, keeps_when_true] :
       {std::tuple(args[2], args[1], true), std::tuple(args[1], args[2], false)}) {
    if (arena.is_constant(masked) && arena.f32_value(masked) <= at_most) {
      return FiniteMask{keeps_when_true ? args[0] : arena.op(Op::k_not, {args[0]}), kept};
    }
  }
  return std::nullopt;
}

}  // namespace

bool extract_finite_mask(SymArena& arena, Softmax& softmax, bool also_added) {
  constexpr float kReplacedBelow = -30000.0f;
  constexpr float kAddedBelow = -1e20f;
  if (!softmax.guards.empty()) {
    return false;
  }
  if (const auto mask = read_finite_mask(arena, softmax.score, kReplacedBelow)) {
    softmax.guards.push_back(mask->kept_when);
    softmax.score = assume(arena, mask->kept, mask->kept_when);
    return true;
  }
  for (size_t i = 0; also_added && i < softmax.key_terms.size() && softmax.key_terms.size() > 1; ++i) {
    const SignedTerm term = softmax.key_terms[i];
    const auto mask = term.negative ? std::nullopt : read_finite_mask(arena, term.term, kAddedBelow);
    if (mask && is_zero(arena, mask->kept)) {
      softmax.key_terms.erase(softmax.key_terms.begin() + static_cast<std::ptrdiff_t>(i));
      softmax.guards.push_back(mask->kept_when);
      softmax.score = sum_of(arena, softmax.key_terms);
      return true;
    }
  }
  return false;
}

}  // namespace flashlift::stablehlo
