#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "score/scalar.h"
#include "stablehlo/algebra/bounds.h"
#include "stablehlo/algebra/program.h"
#include "stablehlo/algebra/softmax.h"

namespace flashlift::stablehlo {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The number of times a formula is evaluated, each time with other positions and tensor elements, 0 among them.
constexpr size_t kDraws = 16;

// Random bits for a part of the formula in one draw.
uint64_t drawn_bits(int64_t part, size_t draw) {
  return ((static_cast<uint64_t>(part) + 1) * 0x9e3779b97f4a7c15 ^ (draw + 1) * 0xbf58476d1ce4e5b9) >> 40;
}

// Evaluates formulas in a row all of whose keys are masked.
class EmptyRowEvaluator {
 public:
  // sizes: of the atoms. masked_scores: tensor elements mask the keys, and the conditions hold.
  EmptyRowEvaluator(const SymArena& arena, const std::vector<int64_t>& sizes,
                    std::map<SymId, score::Scalar<float>> known, bool masked_scores, size_t draw)
      : arena_(arena), sizes_(sizes), values_(std::move(known)), masked_(masked_scores), draw_(draw) {}

  // Gives tensors that the score reads the elements of an ordinary kept key: otherwise they might mask in place of the
  // -inf.
  void keep_score(const std::vector<SymId>& loads) {
    for (const SymId load : loads) {
      values_.try_emplace(load, score::Scalar<float>{.i = 1, .f = 0.37f});
    }
  }

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
        value.i = masked_ ? 1 : drawn_index(sym.payload);  // where data masks, the conditions on positions hold
        break;
      case SymKind::kScore:  // masks the row if the formula does not contain a term because it was rewritten
        value.f = masked_ ? -kInfinity : draw_ % 2 == 0 ? 0.5f : -1.7f;
        break;
      case SymKind::kLoad:
        value = drawn_element(id, sym.type);
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
  int64_t drawn_index(int64_t atom) const {
    const auto size = static_cast<size_t>(atom) < sizes_.size() ? sizes_[static_cast<size_t>(atom)] : 1;
    return static_cast<int64_t>(drawn_bits(atom, draw_) % static_cast<uint64_t>(std::max<int64_t>(size, 1)));
  }

  score::Scalar<float> drawn_element(SymId load, Type type) const {
    static constexpr float kNumbers[] = {0.37f, 0.0f, -2.6f, 41.0f};
    static constexpr int64_t kIntegers[] = {1, 0, -3, 70};
    const uint64_t bits = drawn_bits(load, draw_);
    return {.i = type == Type::kI1 ? static_cast<int64_t>(bits & 1) : kIntegers[bits % std::size(kIntegers)],
            .f = kNumbers[bits % std::size(kNumbers)]};
  }

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
  static constexpr int kKeys = 4;  // in the evaluated row

 private:
  const SymArena& arena_;
  const std::vector<int64_t>& sizes_;
  std::map<SymId, score::Scalar<float>> values_;
  bool masked_;
  size_t draw_;
};

}  // namespace

namespace {

// The sinks of a row without keys: -inf, so that nothing is left in the row, or numbers.
enum class SinksOfRow { kMinusInfinity, kNumbers };

// What empties a row: an added -inf (no condition fails), or conditions that fail, all of them or one alone.
using FailingGuards = std::vector<SymId>;

// The formula's value in a row without keys, one number for each draw.
std::vector<float> values_in_row(SymArena& arena, const std::vector<int64_t>& sizes, SymId formula,
                                 const Softmax& softmax, const FailingGuards& failing,
                                 SinksOfRow sinks = SinksOfRow::kMinusInfinity) {
  std::map<SymId, score::Scalar<float>> known;
  const bool by_data = failing.empty();
  for (const SymId guard : softmax.guards) {
    const int64_t holds = std::find(failing.begin(), failing.end(), guard) == failing.end() ? 1 : 0;
    if (arena.is_op(guard, Op::k_not)) {
      known[arena[guard].args[0]] = {.i = 1 - holds, .f = 0};
    }
    known[guard] = {.i = holds, .f = 0};
  }
  if (by_data) {  // adds -inf to each score
    for (const SignedTerm& term : softmax.key_terms) {
      known[term.term] = {.i = 0, .f = term.negative ? kInfinity : -kInfinity};
    }
  }
  if (sinks == SinksOfRow::kMinusInfinity) {
    for (const SymId sink : softmax.sinks) {
      known[sink] = {.i = 0, .f = -kInfinity};
    }
  }
  std::vector<float> values;
  for (size_t draw = 0; draw < kDraws; ++draw) {
    EmptyRowEvaluator row(arena, sizes, known, by_data, draw);
    if (by_data) {
      row.keep_score(loads_of(arena, softmax.score));
    }
    values.push_back(row.evaluate(formula).f);
  }
  return values;
}

std::optional<EmptyRows> empty_rows_of(float value) {
  if (std::isnan(value)) {
    return EmptyRows::kNan;
  }
  if (value == 0) {
    return EmptyRows::kZero;
  }
  const bool is_mean = std::abs(value - 1.0f / EmptyRowEvaluator::kKeys) < 1e-5f;
  return is_mean ? std::optional(EmptyRows::kUniform) : std::nullopt;
}

// Nothing if the draws differ.
std::optional<EmptyRows> empty_rows_of(const std::vector<float>& values) {
  const auto first = empty_rows_of(values[0]);
  const bool same = std::ranges::all_of(values, [&](float value) { return empty_rows_of(value) == first; });
  return same ? first : std::nullopt;
}

// The guards that fail where a row is empty, or none of them if only data can empty it.
FailingGuards failing_guards(const Softmax& softmax, EmptiedBy by) {
  return by.data && !by.conditions ? FailingGuards() : softmax.guards;
}

// Each way in which a row may be empty. In such a row, some keys may fail one condition and some another one.
std::vector<FailingGuards> ways_to_be_empty(const Softmax& softmax, EmptiedBy by) {
  std::vector<FailingGuards> ways;
  if (by.conditions) {
    for (const SymId guard : softmax.guards) {
      ways.push_back({guard});
    }
    ways.push_back(softmax.guards);
  }
  if (by.data) {
    ways.emplace_back();
  }
  return ways;
}

// Whether a row without keys gives 0 if its sinks are numbers. It does not if the subtracted maximum is of the keys
// alone: e^(-inf - -inf) is NaN.
bool gives_zero_beside_sinks(SymArena& arena, const std::vector<int64_t>& sizes, SymId probability,
                             const Softmax& softmax, EmptiedBy by) {
  return std::ranges::all_of(ways_to_be_empty(softmax, by), [&](const FailingGuards& failing) {
    return empty_rows_of(values_in_row(arena, sizes, probability, softmax, failing, SinksOfRow::kNumbers)) ==
           EmptyRows::kZero;
  });
}

}  // namespace

std::optional<float> value_in_empty_row(SymArena& arena, const std::vector<int64_t>& sizes, SymId formula,
                                        const Softmax& softmax, EmptiedBy by) {
  const std::vector<float> values = values_in_row(arena, sizes, formula, softmax, failing_guards(softmax, by));
  const bool same = std::ranges::all_of(
      values, [&](float value) { return value == values[0] || (std::isnan(value) && std::isnan(values[0])); });
  return same ? std::optional(values[0]) : std::nullopt;
}

Outcome<EmptyRows> classify_empty_rows(SymArena& arena, const std::vector<int64_t>& sizes, SymId probability,
                                       const Softmax& softmax, EmptiedBy by) {
  if (!softmax.sinks.empty() && !gives_zero_beside_sinks(arena, sizes, probability, softmax, by)) {
    return refuse<Reason::kRowsWithSinksAlone>();
  }
  if (std::any_of(softmax.sinks.begin(), softmax.sinks.end(), [&](SymId sink) { return arena.is_constant(sink); })) {
    return EmptyRows::kZero;  // no row is ever empty
  }
  const auto empty_rows = empty_rows_of(values_in_row(arena, sizes, probability, softmax, failing_guards(softmax, by)));
  if (!empty_rows) {
    return refuse<Reason::kRowsWithoutKeys>();
  }
  for (const FailingGuards& failing : ways_to_be_empty(softmax, by)) {
    if (empty_rows_of(values_in_row(arena, sizes, probability, softmax, failing)) != *empty_rows) {
      return failing.empty() ? refuse<Reason::kRowsEmptiedByData>() : refuse<Reason::kRowsEmptiedByOneMask>();
    }
  }
  return *empty_rows;
}

namespace {

// If two scores are at least this far apart, e to their difference is 0 in f32, and so is any representable power of
// it.
constexpr double kApart = 110;
// A mask's number is at least this large.
constexpr float kLeastMask = 100;
constexpr size_t kMostConditions = 4;

// A part of the score is a large constant unless this condition holds.
struct FiniteMask {
  SymId kept_when = kNoSym;
  float masked = 0;
};

std::optional<FiniteMask> read_finite_mask(SymArena& arena, SymId select) {
  const std::vector<SymId> args = arena[select].args;
  for (const auto& [masked, kept, keeps_when_true] :
       {std::tuple(args[2], args[1], true), std::tuple(args[1], args[2], false)}) {
    if (!arena.is_constant(masked)) {
      continue;
    }
    const float value = arena.f32_value(masked);
    const bool is_lower = value <= -kLeastMask && !(arena.is_constant(kept) && arena.f32_value(kept) <= value);
    const bool is_subtracted = value >= kLeastMask && is_zero(arena, kept);
    if (is_lower || is_subtracted) {
      return FiniteMask{keeps_when_true ? args[0] : arena.op(Op::k_not, {args[0]}), -std::abs(value)};
    }
  }
  return std::nullopt;
}

// The conditions of a score's masks, each once, those with the largest constants first.
std::vector<SymId> conditions_of_masks(SymArena& arena, SymId score) {
  std::vector<FiniteMask> masks;
  any_part({score}, [&](SymId id, std::vector<SymId>& next) {
    const Sym& sym = arena[id];
    if (sym.kind != SymKind::kOp) {
      return false;
    }
    if (sym.op == Op::k_select && sym.type == Type::kF32 && !arena[sym.args[0]].has_score) {
      if (const auto mask = read_finite_mask(arena, id)) {
        masks.push_back(*mask);
      }
    }
    arena.push_args(id, next);
    return false;
  });
  std::stable_sort(masks.begin(), masks.end(),
                   [](const FiniteMask& x, const FiniteMask& y) { return x.masked < y.masked; });
  std::vector<SymId> conditions;
  for (const FiniteMask& mask : masks) {
    if (std::find(conditions.begin(), conditions.end(), mask.kept_when) == conditions.end()) {
      conditions.push_back(mask.kept_when);
    }
  }
  if (conditions.size() > kMostConditions) {
    conditions.resize(kMostConditions);
  }
  return conditions;
}

// The formula under the assumption that each condition holds or fails as given. Nothing if conditions contradict each
// other.
std::optional<SymId> with_conditions(SymArena& arena, SymId formula, std::vector<SymId> conditions,
                                     const std::vector<bool>& hold) {
  for (size_t i = 0; i < conditions.size(); ++i) {
    const SymId condition = conditions[i];
    if (arena.is_constant(condition)) {
      if ((arena[condition].payload != 0) != hold[i]) {
        return std::nullopt;
      }
      continue;
    }
    const auto apply = [&](SymId id) {
      if (hold[i]) {
        return assume(arena, id, condition);
      }
      const SymId without = arena.replace(id, condition, arena.boolean(false));
      return arena.is_op(condition, Op::k_not) ? arena.replace(without, arena[condition].args[0], arena.boolean(true))
                                               : without;
    };
    formula = apply(formula);
    for (size_t other = i + 1; other < conditions.size(); ++other) {
      conditions[other] = apply(conditions[other]);
    }
  }
  return formula;
}

// Keys that a mask may keep in every row: the first key, the last key, and those at which differences of positions are
// 0.
std::vector<SymId> possible_witnesses(SymArena& arena, Bounds& bounds, const std::vector<SymId>& conditions,
                                      int64_t keys) {
  constexpr size_t kMost = 12;
  const SymId key = arena.atom(kKeyAtom);
  std::vector<SymId> found{arena.i32(0), arena.i32(keys - 1)};
  const auto add = [&](const Bounds::Linear& sum, const Bounds::Linear& less) {
    Bounds::Linear difference = sum;
    for (const auto& [term, factor] : less.terms) {
      difference.terms[term] -= factor;
    }
    difference.constant -= less.constant;
    const auto at_key = difference.terms.find(key);
    if (at_key == difference.terms.end() || (at_key->second != 1 && at_key->second != -1)) {
      return;
    }
    const int64_t sign = -at_key->second;
    SymId witness = arena.i32(sign * difference.constant);
    for (const auto& [term, factor] : difference.terms) {
      if (term == key || factor == 0) {
        continue;
      }
      if (arena[term].kind != SymKind::kAtom) {
        return;
      }
      witness = arena.op(Op::k_add, {arena.op(Op::k_mul, {term, arena.i32(sign * factor)}), witness});
    }
    if (std::find(found.begin(), found.end(), witness) == found.end() && found.size() < kMost) {
      found.push_back(witness);
    }
  };
  any_part(conditions, [&](SymId id, std::vector<SymId>& next) {
    const Sym& sym = arena[id];
    arena.push_args(id, next);
    if (sym.kind != SymKind::kOp || sym.args.size() != 2) {
      return false;
    }
    const Type type = arena[sym.args[0]].type;
    if (type == Type::kI32 || type == Type::kI64) {
      sym.type == Type::kI1 ? add(bounds.linear(sym.args[0]), bounds.linear(sym.args[1])) : add(bounds.linear(id), {});
    }
    // The same tensor of ids, read at the query's and at the key's position.
    if (arena[sym.args[0]].kind == SymKind::kLoad && arena[sym.args[1]].kind == SymKind::kLoad) {
      const std::vector<SymId> one = arena[sym.args[0]].args;
      const std::vector<SymId> other = arena[sym.args[1]].args;
      for (size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
        if (one[i] != other[i]) {
          add(bounds.linear(one[i]), bounds.linear(other[i]));
        }
      }
    }
    return false;
  });
  return found;
}

// In each row, the conditions provably keep some key: this is a lower bound of that key's score. Nothing if a row may
// have no such key.
std::optional<double> least_of_kept_key(SymArena& arena, Bounds& bounds, const std::vector<SymId>& conditions,
                                        SymId kept, int64_t keys) {
  const SymId key = arena.atom(kKeyAtom);
  std::optional<double> least;
  for (const SymId witness : possible_witnesses(arena, bounds, conditions, keys)) {
    const score::Interval place = bounds.of(witness);
    if (place.lo < 0 || place.hi >= keys) {
      continue;
    }
    const bool is_kept = std::all_of(conditions.begin(), conditions.end(), [&](SymId condition) {
      return bounds.surely_holds(arena.replace(condition, key, witness));
    });
    if (is_kept) {
      const double lowest = bounds.of(arena.replace(kept, key, witness)).real_lo;
      least = std::max(least.value_or(lowest), lowest);
    }
  }
  return least;
}

// Whether the probabilities of keys for which some condition fails are also set to 0 after the softmax.
bool clears_masked(SymArena& arena, const Softmax& softmax, const std::vector<SymId>& conditions) {
  std::vector<SymId> parts;
  for (const SymId condition : conditions) {
    add_guard(arena, parts, condition);
  }
  return std::all_of(parts.begin(), parts.end(), [&](SymId part) {
    return std::find(softmax.keep.begin(), softmax.keep.end(), part) != softmax.keep.end();
  });
}

// Whether keys for which some condition fails may be left out. `kept` is the score where all conditions hold.
FiniteMasks proved_masks(SymArena& arena, Bounds& bounds, const Softmax& softmax, const std::vector<SymId>& conditions,
                         SymId kept, int64_t keys, bool all_rows_count) {
  const bool is_cleared = clears_masked(arena, softmax, conditions);  // then a row without kept keys is 0, too
  double highest = -std::numeric_limits<double>::infinity();          // an upper bound of masked scores
  std::set<float> numbers;                                            // the values of masked scores
  bool are_numbers = true;
  for (size_t which = 1; which < (size_t{1} << conditions.size()); ++which) {
    std::vector<bool> hold;
    for (size_t i = 0; i < conditions.size(); ++i) {
      hold.push_back((which >> i & 1) == 0);
    }
    const auto masked = with_conditions(arena, softmax.score, conditions, hold);
    if (!masked) {
      continue;
    }
    const score::Interval range = bounds.of(*masked);
    if (range.may_be_nan || (is_cleared && !bounds.finite(*masked))) {
      return FiniteMasks::kNone;
    }
    highest = std::max(highest, range.real_hi);
    const auto number = bounds.number(*masked);
    are_numbers = are_numbers && number && !(all_rows_count && arena[*masked].has_score);
    numbers.insert(number.value_or(0));
  }
  if (const auto least = least_of_kept_key(arena, bounds, conditions, kept, keys); least && *least > highest + kApart) {
    return FiniteMasks::kInRowsWithKeys;
  }
  const bool below_kept = bounds.of(kept).real_lo > highest + kApart && !bounds.of(kept).may_be_nan;
  if (is_cleared) {
    return below_kept ? FiniteMasks::kInAllRows : FiniteMasks::kNone;
  }
  const bool below_sinks = std::all_of(softmax.sinks.begin(), softmax.sinks.end(),
                                       [&](SymId sink) { return bounds.of(sink).real_lo > highest + kApart; });
  return below_kept && below_sinks && are_numbers && numbers.size() == 1 ? FiniteMasks::kInAllRows : FiniteMasks::kNone;
}

}  // namespace

bool keeps_a_key(SymArena& arena, const KnownBounds& given, const std::vector<SymId>& conditions, int64_t keys) {
  Bounds bounds(arena, given);
  return least_of_kept_key(arena, bounds, conditions, arena.f32(0.0F), keys).has_value();
}

bool has_finite_masks(SymArena& arena, SymId score) { return !conditions_of_masks(arena, score).empty(); }

std::vector<SymId> masks_of_whole_rows(SymArena& arena, const KnownBounds& given, SymId score) {
  std::vector<SymId> conditions = conditions_of_masks(arena, score);
  return conditions.empty() || keeps_a_key(arena, given, conditions, given.sizes[kKeyAtom]) ? std::vector<SymId>()
                                                                                            : conditions;
}

FiniteMasks extract_finite_masks(SymArena& arena, Softmax& softmax, const KnownBounds& given, bool all_rows_count) {
  if (!softmax.guards.empty()) {
    return FiniteMasks::kNone;
  }
  Bounds bounds(arena, given);
  // Ordinary scores may reach the smaller constants: each trial leaves out the condition with the smallest one.
  for (std::vector<SymId> conditions = conditions_of_masks(arena, softmax.score); !conditions.empty();
       conditions.pop_back()) {
    const auto kept = with_conditions(arena, softmax.score, conditions, std::vector<bool>(conditions.size(), true));
    if (!kept) {
      continue;
    }
    const FiniteMasks proved =
        proved_masks(arena, bounds, softmax, conditions, *kept, given.sizes[kKeyAtom], all_rows_count);
    if (proved != FiniteMasks::kNone) {
      for (const SymId condition : conditions) {
        add_guard(arena, softmax.guards, condition);
      }
      softmax.score = *kept;
      return proved;
    }
  }
  return FiniteMasks::kNone;
}

}  // namespace flashlift::stablehlo
