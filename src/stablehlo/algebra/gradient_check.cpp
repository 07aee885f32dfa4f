#include "stablehlo/algebra/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "stablehlo/algebra/program.h"

namespace flashlift::stablehlo {
namespace {

constexpr size_t kDraws = 6;
constexpr int64_t kMostRows = 12;         // compared in each of the first kDraws draws
constexpr int64_t kRowsBeyond = 2;        // compared in each further draw, if rows are short
constexpr int64_t kMostKeys = 8192;       // of the compared rows of a draw together
constexpr double kTolerance = 1e-6;       // relative to the largest term
constexpr double kLargestScore = 0x1p24;  // beyond, f32 rounds scores to even numbers
constexpr double kLargestExponent = 104;  // in f32, e to this is infinite, and e to its negative is 0

// Draws for the comparison. If a formula clips gradients or scores, only large numbers reveal it. The further draws
// therefore go well beyond each threshold, also with all numbers of a row on one side of it, and with tensors of both
// signs. The scores of a row are drawn near each other: otherwise one key has all of the probability, and the gradient
// is 0 whatever it is multiplied with. The exponentials of a softmax may change a gradient at any exponent that f32 can
// represent, from -104 to 104; a rational function changes it for all large scores or gradients. `scale` is the factor
// from the drawn scores to these exponents.
std::vector<Draw> draws_for(std::optional<double> threshold, double scale) {
  std::vector<Draw> draws;
  for (size_t trial = 0; trial < kDraws; ++trial) {
    draws.push_back({.score_range = trial % 2 == 0 ? 4.0 : 30.0, .gradient_range = trial % 3 == 0 ? 1.0 : 1e6});
  }
  draws.push_back({.load_center = 0, .load_range = 2});
  // Frameworks differ in the derivatives of max(s, 0) and |s| at 0, and padding gives scores that are exactly 0.
  draws.push_back({.zero_scores = true});
  draws.push_back({.zero_scores = true, .gradient_range = 1e6});
  // Several keys have the largest score, or the smallest.
  draws.push_back({.score_center = -5, .zero_scores = true});
  draws.push_back({.score_center = 5, .zero_scores = true});
  for (const double center : {16.0, 32.0, 48.0, 64.0, 80.0, 96.0, 102.0}) {
    draws.push_back({.score_center = center, .score_range = 8, .score_scale = scale});
    draws.push_back({.score_center = -center, .score_range = 8, .score_scale = scale});
  }
  for (const double center : {200.0, 1e3, 1e4, 1e6}) {
    draws.push_back({.score_center = center, .gradient_range = 1 / center});
    draws.push_back({.score_center = -center, .gradient_range = center * center});
  }
  if (!threshold) {
    return draws;
  }
  const double size = std::max(1.0, *threshold);
  for (const double factor : {3.0, 50.0}) {
    for (const double center : {0.0, -0.8, 0.8}) {
      const double range = (center == 0 ? 1.0 : 0.6) * factor * size;
      draws.push_back({.score_center = center * factor * size, .score_range = range});
      draws.push_back({.load_center = center * factor * size, .load_range = range});
    }
  }
  return draws;
}

// Two scores of the product differ at most by this.
constexpr double kFarthestScores = 2 * kLargestScore;
// Where numbers of the score differ by more than this, rows are also drawn in which the scores make up for it.
constexpr double kFarNumbers = 8;

// Whether the formula has a number that may mask keys, but not against each score of the product.
bool may_mask_within_reach(const SymArena& arena, SymId formula) {
  return std::ranges::any_of(parts_of(arena, {formula}), [&](SymId id) {
    const double size = arena[id].type == Type::kF32 && arena.is_constant(id) ? std::abs(arena.f32_value(id)) : 0;
    return kFarNumbers < size && size <= kFarthestScores;
  });
}

using Values = std::vector<std::pair<SymId, bool>>;

std::vector<SymId> boolean_tensors(const SymArena& arena, SymId formula) {
  std::vector<SymId> found = loads_of(arena, formula);
  std::erase_if(found, [&](SymId load) { return arena[load].type != Type::kI1; });
  return found;
}

// Finds values that make a condition true, or false. These are values of the boolean tensors that the condition reads,
// so that they also hold where a formula writes the condition differently; without such a tensor, the value of the
// condition itself. There may be several ways, because each operand alone can make an `and` false.
class Forcing {
 public:
  explicit Forcing(SymArena& arena) : arena_(arena) {}

  // Empty if the search found none.
  const std::vector<Values>& ways(SymId condition, bool wanted) {
    const auto key = std::pair(condition, wanted);
    if (!found_.contains(key)) {
      found_[key] = search(condition, wanted);
    }
    return found_[key];
  }

  // Ways that make all conditions true, or all false: the first way combines the first one of each condition, the
  // second the second ones, and so on.
  std::vector<Values> ways_of_all(const std::vector<SymId>& conditions, bool wanted) {
    size_t count = 0;
    for (const SymId condition : conditions) {
      if (ways(condition, wanted).empty()) {
        return {};
      }
      count = std::max(count, ways(condition, wanted).size());
    }
    std::vector<Values> all(count);
    for (size_t way = 0; way < count; ++way) {
      for (const SymId condition : conditions) {
        const std::vector<Values>& own = ways(condition, wanted);
        const Values& values = own[std::min(way, own.size() - 1)];
        all[way].insert(all[way].end(), values.begin(), values.end());
      }
      if (all[way].size() > kMostValues) {
        return {};
      }
    }
    return all;
  }

 private:
  std::vector<Values> search(SymId condition, bool wanted) {
    const Sym& sym = arena_[condition];
    if (sym.kind == SymKind::kOp && sym.op == Op::k_not) {
      return ways(sym.args[0], !wanted);
    }
    if (sym.kind == SymKind::kOp && (sym.op == Op::k_and || sym.op == Op::k_or)) {
      const bool one_suffices = sym.op == (wanted ? Op::k_or : Op::k_and);
      return one_suffices ? ways_of_any(sym.args, wanted) : ways_of_all(sym.args, wanted);
    }
    const std::vector<SymId> tensors = boolean_tensors(arena_, condition);
    if (tensors.empty()) {
      return {Values{{condition, wanted}}};
    }
    // Arithmetic on booleans: equal values of all tensors may make the condition a constant.
    for (const bool held : {false, true}) {
      std::map<SymId, SymId> known;
      Values values;
      for (const SymId tensor : tensors) {
        known.emplace(tensor, arena_.boolean(held));
        values.emplace_back(tensor, held);
      }
      if (arena_.replace_known(condition, known) == arena_.boolean(wanted)) {
        return {values};
      }
    }
    return {};
  }

  std::vector<Values> ways_of_any(const std::vector<SymId>& conditions, bool wanted) {
    std::vector<Values> any;
    for (const SymId condition : conditions) {
      const std::vector<Values>& own = ways(condition, wanted);
      any.insert(any.end(), own.begin(), own.end());
    }
    any.resize(std::min(any.size(), kMostWays));
    return any;
  }

  static constexpr size_t kMostValues = 64;
  static constexpr size_t kMostWays = 8;

  SymArena& arena_;
  std::map<std::pair<SymId, bool>, std::vector<Values>> found_;
};

// Adds rows in which finite masks leave out all keys. In random rows, each condition nearly always holds for some key.
// The masked keys then have probability 0, which hides what a gradient does with them.
Proof add_masked_rows(SymArena& arena, const std::vector<SymId>& masks, std::vector<Draw>& draws) {
  Forcing forcing(arena);
  for (const SymId condition : masks) {
    const std::vector<Values>& ways = forcing.ways(condition, false);
    if (ways.empty()) {
      return refuse<Reason::kMaskedRowNotDrawn>();
    }
    for (const Values& values : masks.size() > 1 ? ways : std::vector<Values>()) {
      draws.push_back({.conditions = values});
    }
  }
  for (Values& values : forcing.ways_of_all(masks, false)) {
    draws.push_back({.conditions = std::move(values)});
  }
  return Proof();
}

// Records on which conditions the formulas branch, and in which compared rows each condition held and failed. A
// condition on one row, one id or one number of a tensor is hardly ever met at random, and a gradient may be wrong just
// there.
class Branches {
 public:
  // The derivative of `shifted` branches on conditions of its own. They are equivalent to those of the formula, because
  // kShift is 0.
  Branches(SymArena& arena, std::vector<SymId> known, SymId formula, SymId shifted,
           const std::map<SymId, SymId>& constants) {
    // Draws are finite, and meet some conditions only one way.
    for (const SymId condition : conditions_of(arena, {formula})) {
      if (compared_with_infinity(arena, condition) == kNoSym && !constants.contains(condition)) {
        conditions_[condition];
      }
    }
    for (const SymId condition : conditions_of(arena, known)) {
      if (!constants.contains(condition)) {
        conditions_[condition].is_known = true;
      }
    }
    const SymId shift = arena.load(kShift, Type::kF32, {});
    for (const SymId condition : conditions_of(arena, {shifted == kNoSym ? known[0] : shifted})) {
      const SymId plain = arena.replace(condition, shift, arena.f32(0.0F));
      if (plain != condition && conditions_.contains(plain)) {
        conditions_[plain].shifted.push_back(condition);
      }
    }
    find_compared_numbers(arena, parts_of(arena, known), parts_of(arena, {shifted == kNoSym ? known[0] : shifted}));
  }

  // Only keys with a probability count.
  void note(NumericRow& numbers, SymId probability, size_t keys) {
    constexpr double kLeastProbability = 1e-9;
    for (auto& [condition, ways] : conditions_) {
      bool held = ways.held >= kOften;
      bool failed = ways.failed >= kOften;
      for (size_t key = 0; key < keys && !(held && failed); ++key) {
        if (numbers.value(probability, key) > kLeastProbability) {
          (numbers.holds(condition, key) ? held : failed) = true;
        }
      }
      ways.held += held ? 1 : 0;
      ways.failed += failed ? 1 : 0;
    }
  }

  // A draw for each condition and outcome that no row had.
  std::vector<Draw> missing() const { return draws_of_ways_gone_less_than(1, false); }
  std::vector<Draw> missing_of_known() const { return draws_of_ways_gone_less_than(1, true); }

  // A draw for each two rare outcomes: the formula may branch on both together.
  std::vector<Draw> joined() const {
    constexpr size_t kMostJoined = 8;
    const std::vector<Draw> draws = draws_of_ways_gone_less_than(kOften, true);
    std::vector<Draw> both;
    for (size_t one = 0; one < std::min(draws.size(), kMostJoined); ++one) {
      for (size_t other = 0; other < one; ++other) {
        if (draws[one].met[0].condition != draws[other].met[0].condition) {
          both.push_back(draws[one]);
          both.back().met.insert(both.back().met.end(), draws[other].met.begin(), draws[other].met.end());
        }
      }
    }
    return both;
  }

 private:
  static constexpr int kOften = 8;  // rows

  struct Ways {
    int held = 0;  // the number of rows in which it held
    int failed = 0;
    bool is_known = false;  // the known formulas branch on it, too
    std::vector<SymId> shifted;
    // If the known formulas have the larger or the smaller one of two numbers, and the condition compares both: one of
    // them, also as the shifted formula has it, the other one, and whether the condition has the former on its left.
    std::vector<SymId> numbers;
    SymId bound = kNoSym;
    Op comparison = Op::k_eq;
    bool is_left = false;
  };

  // A draw that sets such a condition would contradict the numbers, whose smaller one has the derivative.
  void find_compared_numbers(SymArena& arena, const std::set<SymId>& known, const std::set<SymId>& shifted) {
    const SymId shift = arena.load(kShift, Type::kF32, {});
    for (auto& [condition, ways] : conditions_) {
      const std::vector<SymId> args = arena[condition].args;
      const bool is_compared = std::any_of(known.begin(), known.end(), [&](SymId id) {
        return (arena.is_op(id, Op::k_max) || arena.is_op(id, Op::k_min)) &&
               std::is_permutation(args.begin(), args.end(), arena[id].args.begin(), arena[id].args.end());
      });
      if (!is_compared) {
        continue;
      }
      for (const size_t left : {0U, 1U}) {
        const SymId number = args[left];
        const SymId bound = args[1 - left];
        if (!arena[number].has_score || arena[number].type != Type::kF32 ||
            (arena.depends_on(bound, kKeyAtom) && !arena.depends_on(number, kKeyAtom)) ||
            parts_of(arena, {bound}).contains(number)) {
          continue;
        }
        ways.bound = bound;
        ways.comparison = arena[condition].op;
        ways.is_left = left == 0;
        ways.numbers = {number};
        for (const SymId id : shifted) {
          if (id != number && arena[id].has_score && arena.replace(id, shift, arena.f32(0.0F)) == number) {
            ways.numbers.push_back(id);
          }
        }
        break;
      }
    }
  }

  // From the bound to a number that makes the comparison hold, or not.
  static double distance(Op comparison, bool holds, bool is_left) {
    if (comparison == Op::k_eq || comparison == Op::k_ne) {
      return holds == (comparison == Op::k_eq) ? 0 : 1;
    }
    const bool wants_larger = holds == (comparison == Op::k_gt || comparison == Op::k_ge);
    return wants_larger == is_left ? 1 : -1;
  }

  std::vector<Draw> draws_of_ways_gone_less_than(int times, bool of_known) const {
    std::vector<Draw> draws;
    for (const auto& [condition, ways] : conditions_) {
      for (const bool holds : {true, false}) {
        if ((holds ? ways.held : ways.failed) >= times || (of_known && !ways.is_known && ways.numbers.empty())) {
          continue;
        }
        Draw draw;
        for (const SymId number : ways.numbers) {
          draw.met.push_back({condition, holds, number, ways.bound, distance(ways.comparison, holds, ways.is_left)});
        }
        if (ways.numbers.empty()) {
          draw.met.push_back({condition, holds});
          for (const SymId shifted : ways.shifted) {
            draw.met.push_back({shifted, holds});
          }
        }
        draws.push_back(std::move(draw));
      }
    }
    return draws;
  }

  std::map<SymId, Ways> conditions_;
};

// Counts the compared rows that can reveal a wrong gradient. Rows with gradients of 1e6 hide errors of small gradients,
// so that some rows must have small ones.
class Compared {
 public:
  void count(const Draw& draw) { ++(draw.gradient_range > 1 ? of_large_gradients_ : of_small_gradients_); }
  bool any() const { return of_small_gradients_ > 0; }
  bool suffices() const { return any() && of_small_gradients_ + of_large_gradients_ >= static_cast<int>(kDraws); }

 private:
  int of_small_gradients_ = 0;
  int of_large_gradients_ = 0;
};

// Counts rows in which the scores themselves are drawn, instead of computed from drawn products and tensors. Computed
// scores may give one key all of the probability in each row: s + (1 - x) * -1e9. A gradient is the same function of
// the scores, however they are computed. But a formula may contain the scores in another form, which stays computed, or
// the scores may contain a mask that the gradient does not apply again. Such rows differ among the first ones already,
// and then these rows are not used.
class DrawnScore {
 public:
  void note(const Outcome<bool>& row, const Draw& draw) {
    differs_ = differs_ || !row.ok();
    if (row.ok() && *row) {
      compared_.count(draw);
    }
  }
  bool suffices() const { return compared_.suffices() && is_meaningful(); }
  bool is_meaningful() const { return compared_.any() && !differs_; }

 private:
  Compared compared_;
  bool differs_ = false;
};

// Whether a row has several keys with a probability, or one key beside sinks. Otherwise the probability is 1 or 0 and p
// (d_p - sum p d_p) is 0, so that the row cannot reveal a wrong formula.
class Spread {
 public:
  void add(double p) { sum_ += p * (1 - p); }
  bool shows() const { return sum_ > 1e-3; }

 private:
  double sum_ = 0;
};

}  // namespace

SymId score_with_shift(SymArena& arena, const Softmax& softmax, SymId term) {
  const SymId shift = arena.load(kShift, Type::kF32, {});
  return arena.replace(softmax.score, term, arena.op(Op::k_add, {term, shift}));
}

// Whether the formula is smooth on the same pieces as the known formulas.
Proof GradientCheck::is_within(SymId formula, const std::vector<SymId>& known) const {
  if (!reads_within(arena_, formula, known, softmax_.sinks)) {
    return refuse<Reason::kReadsMore>();
  }
  if (!computes_within(arena_, formula, known)) {
    return refuse<Reason::kComputesMore>();
  }
  return rounds_ || rounds_within(arena_, formula, known) ? Proof() : refuse<Reason::kRoundsMore>();
}

// Conditions that have one value for any finite scores and tensors: a finite number is neither +inf nor NaN. JAX's
// derivatives of softplus and logaddexp have them.
std::map<SymId, SymId> GradientCheck::conditions_of_finite_numbers(const std::vector<SymId>& formulas) {
  std::map<int64_t, score::Interval> floats;
  for (const SymId formula : formulas) {
    for (const SymId load : loads_of(arena_, formula)) {
      if (arena_[load].type == Type::kF32) {
        floats.emplace(arena_[load].payload, score::Interval::real(-kLargestScore, kLargestScore));
      }
    }
  }
  const auto leaf = [&](int64_t number) {
    const auto found = floats.find(number);
    return found == floats.end() ? std::nullopt : std::optional(found->second);
  };
  const KnownBounds given{.sizes = sizes_, .largest_score = kLargestScore, .leaf = leaf};
  Bounds bounds(arena_, given);
  std::map<SymId, SymId> known;
  for (const SymId condition : conditions_of(arena_, formulas)) {
    const std::vector<SymId> args = arena_[condition].args;
    for (const size_t side : {0U, 1U}) {
      if (arena_.is_op(condition, Op::k_eq) && arena_.is_f32(args[side], std::numeric_limits<float>::infinity()) &&
          bounds.finite(args[1 - side])) {
        known.emplace(condition, arena_.boolean(false));
      }
    }
    const bool finds_nan = arena_.is_op(condition, Op::k_ne) && args[0] == args[1];
    if (finds_nan && arena_[args[0]].type == Type::kF32 && bounds.finite(args[0])) {
      known.emplace(condition, arena_.boolean(false));
    }
  }
  return known;
}

Proof GradientCheck::compare_rows(SymId formula, const CompareRow& compare, SymId shifted) {
  std::vector<SymId> known = {parts_.probability, parts_.undropped, softmax_.score};
  for (const SymId given : {parts_.d_probability, parts_.d_lse}) {
    if (given != kNoSym) {
      known.push_back(given);
    }
  }
  std::vector<SymId> all = known;
  all.push_back(formula);
  const std::map<SymId, SymId> constants = conditions_of_finite_numbers(all);
  std::vector<SymId> within = known;
  if (!constants.empty()) {
    formula = arena_.replace_known(formula, constants);
    for (const SymId id : known) {
      within.push_back(arena_.replace_known(id, constants));
    }
  }
  FLASHLIFT_RETURN_IF_ERROR(is_within(formula, within));
  const auto rows = std::clamp<int64_t>(kMostKeys / sizes_[kKeyAtom], 2, kMostRows);
  const int64_t rows_beyond = sizes_[kKeyAtom] > kMostKeys ? 1 : kRowsBeyond;
  const auto compare_row = [&](NumericRow& numbers, const Draw& draw) -> Outcome<bool> {
    Outcome<bool> shows = compare(numbers, draw);
    return !shows.ok() && draw.conditions.empty() && overflows(numbers) ? Outcome<bool>(false) : shows;
  };
  Compared compared;
  std::vector<Draw> draws = draws_for(largest_threshold(arena_, known), scale_of_scores());
  draws.push_back({.draws_positions = true});
  draws.push_back({.load_center = 0, .load_range = 2, .draws_positions = true});
  FLASHLIFT_RETURN_IF_ERROR(add_masked_rows(arena_, masks_, draws));
  Branches branches(arena_, known, formula, shifted, constants);
  int times_missing = 0;
  DrawnScore drawn_score;
  for (size_t trial = 0; trial < draws.size(); ++trial) {
    Draw draw = draws[trial];
    draw.seed = 17 * trial + 1;
    draw.gradient = gradient_leaf();
    draw.integer_range = trial < 3 ? 3 : sizes_[kKeyAtom] + 1;  // small for ids, large for lengths
    for (int64_t row = 0; row < (trial < kDraws ? rows : rows_beyond); ++row) {
      const std::vector<int64_t> atoms = some_row(trial, static_cast<uint64_t>(row));
      leave_a_key(atoms, draw);
      const auto note = [&](NumericRow& numbers) {
        if (draw.conditions.empty()) {
          branches.note(numbers, parts_.undropped, static_cast<size_t>(sizes_[kKeyAtom]));
        }
      };
      const Outcome<bool> shows = compare_row_narrowed(atoms, draw, compare_row, note);
      if (!shows.ok()) {
        return draw.conditions.empty() ? Proof(shows.error()) : refuse<Reason::kGradientOfMasked>();
      }
      if (draw.conditions.empty() && (!*shows || trial == 0 || draw.zero_scores) && has_numbers(atoms, draw)) {
        draw.drawn = softmax_.score;
        NumericRow numbers(arena_, sizes_, atoms, draw);
        const Outcome<bool> with_drawn = compare_row(numbers, draw);
        draw.drawn = kNoSym;
        if (trial < kDraws) {
          drawn_score.note(with_drawn, draw);
        } else if (!with_drawn.ok() && drawn_score.is_meaningful()) {
          return with_drawn.error();
        }
        if (with_drawn.ok() && *with_drawn) {
          note(numbers);
        }
      }
      if (*shows && trial < kDraws) {
        compared.count(draw);
      }
    }
    if (trial + 1 == draws.size() && times_missing < 2) {
      const std::vector<Draw> missing =
          times_missing == 0 ? branches.missing() : by_all_keys(branches.missing_of_known());
      const std::vector<Draw> joined = times_missing == 0 ? branches.joined() : std::vector<Draw>();
      draws.insert(draws.end(), missing.begin(), missing.end());
      draws.insert(draws.end(), joined.begin(), joined.end());
      ++times_missing;
    }
  }
  for (const auto& [atoms, draw] : rows_near_masks()) {
    NumericRow numbers(arena_, sizes_, atoms, draw);
    if (const Outcome<bool> shows = compare_row(numbers, draw); !shows.ok()) {
      return shows.error();
    }
  }
  return compared.suffices() || drawn_score.suffices() ? Proof() : refuse<Reason::kTooFewRows>();
}

// Rows that keep some keys and mask others by a number such as -1e4, with scores of the product that make up for it: if
// the number replaces scores, those of the kept keys are near it; if it is added, those of the masked keys are larger.
// In other rows the masked keys have probability 0, which hides what a gradient does with them. A causal mask of many
// queries and few keys masks only in the first rows, so that these are sought at the ends of each dimension.
std::vector<std::pair<std::vector<int64_t>, Draw>> GradientCheck::rows_near_masks() const {
  constexpr int64_t kMostTries = 32;
  constexpr size_t kMostNumbers = 8;
  constexpr int kRowsOfEach = 4;
  constexpr int kMostRowsOfAdded = 16;
  std::vector<std::pair<std::vector<int64_t>, Draw>> rows;
  if (!may_mask_within_reach(arena_, softmax_.score)) {
    return rows;
  }
  const std::vector<SymId> conditions = conditions_of(arena_, {softmax_.score});
  std::map<double, int> rows_of;
  int rows_of_added = 0;
  const int64_t tries = std::clamp<int64_t>(kMostKeys / std::max<int64_t>(sizes_[kKeyAtom], 1), 2, kMostTries);
  for (int64_t trial = 0; trial < tries; ++trial) {
    for (int end_of = kKeyAtom; end_of < kFirstBound; ++end_of) {
      const int64_t size = sizes_[static_cast<size_t>(end_of)];
      const auto depends = [&](SymId condition) { return arena_.depends_on(condition, end_of); };
      if (end_of != kKeyAtom && (size < 2 || std::ranges::none_of(conditions, depends))) {
        continue;
      }
      std::vector<int64_t> atoms = some_row(static_cast<uint64_t>(trial), 0);
      if (end_of != kKeyAtom) {
        const int64_t from_end = trial / 2 % size;
        atoms[static_cast<size_t>(end_of)] = trial % 2 == 0 ? from_end : size - 1 - from_end;
      }
      Draw draw{.seed = static_cast<uint64_t>(31 * trial + end_of + 1), .score_range = 0};
      draw.gradient = gradient_leaf();
      draw.integer_range = trial % 2 == 0 ? 3 : sizes_[kKeyAtom] + 1;
      const MaskedRow row = masked_row(atoms, draw);
      draw.score_range = 8;
      for (const double number : row.numbers) {
        if ((rows_of.contains(number) || rows_of.size() < kMostNumbers) && rows_of[number]++ < kRowsOfEach) {
          rows.emplace_back(atoms, near(number, row, draw));
        }
      }
      if (row.has_far_keys && rows_of_added++ < kMostRowsOfAdded) {
        rows.emplace_back(atoms, near(row.highest, row, draw));
      }
    }
  }
  return rows;
}

// How the scores of a row follow from those of the product, and the numbers of those that do not.
GradientCheck::MaskedRow GradientCheck::masked_row(const std::vector<int64_t>& atoms, Draw draw) const {
  draw.score_center = 0;
  NumericRow at_zero(arena_, sizes_, atoms, draw);
  draw.score_center = 1;
  NumericRow at_one(arena_, sizes_, atoms, draw);
  MaskedRow row;
  std::set<double> numbers;
  for (size_t key = 0; key < static_cast<size_t>(sizes_[kKeyAtom]); ++key) {
    const double score = at_zero.value(softmax_.score, key);
    const double slope = at_one.value(softmax_.score, key) - score;
    row.at_zero.push_back(score);
    row.slopes.push_back(std::isfinite(slope) ? slope : 0);
    if (slope == 0) {
      numbers.insert(score);
    } else if (std::isfinite(slope)) {
      row.highest = std::max(row.highest, score);
    }
  }
  for (size_t key = 0; key < row.slopes.size(); ++key) {
    const double slope = std::abs(row.slopes[key]);
    const double below = row.highest - row.at_zero[key];
    row.has_far_keys = row.has_far_keys || (slope > 0 && below > kFarNumbers && below <= kFarthestScores * slope);
    for (const double number : numbers) {
      if (slope > 0 && std::abs(number - row.at_zero[key]) <= kLargestScore * slope) {
        row.numbers.insert(number);
      }
    }
  }
  return row;
}

// Lets the scores of all keys that follow from the product's, and can be near the number, be near it.
Draw GradientCheck::near(double number, const MaskedRow& row, Draw draw) {
  draw.score_center = number;
  for (size_t key = 0; key < row.slopes.size(); ++key) {
    const double slope = row.slopes[key];
    const bool is_near = slope != 0 && std::abs(number - row.at_zero[key]) <= kFarthestScores * std::abs(slope);
    draw.key_scores.push_back(is_near ? KeyScore{.offset = -row.at_zero[key] / slope, .scale = slope}
                                      : KeyScore{.offset = -number});
  }
  return draw;
}

std::vector<int64_t> GradientCheck::some_row(uint64_t trial, uint64_t row) const {
  std::vector<int64_t> atoms(kMaxAtoms, 0);
  for (size_t atom = 1; atom < atoms.size(); ++atom) {
    atoms[atom] = static_cast<int64_t>((trial * 7919 + row * 104729 + atom * 1299709) %
                                       static_cast<uint64_t>(std::max<int64_t>(sizes_[atom], 1)));
  }
  return atoms;
}

// The leaf that is the gradient of the probabilities, or -1.
int64_t GradientCheck::gradient_leaf() const {
  return parts_.d_probability == kNoSym ? -1 : arena_[parts_.d_probability].payload;
}

// Whether no score of the row is NaN, such as the logarithm of a negative number. Formulas read these numbers even
// where the scores are drawn instead of computed from them.
bool GradientCheck::has_numbers(const std::vector<int64_t>& atoms, const Draw& draw) const {
  NumericRow numbers(arena_, sizes_, atoms, draw);
  return std::ranges::none_of(numbers.values(softmax_.score), [](const auto& score) { return std::isnan(score.f); });
}

// How fast the softmax's scores grow with those of the product, near 0.
double GradientCheck::scale_of_scores() const {
  constexpr double kLargest = 1e3;
  const std::vector<int64_t> atoms(kMaxAtoms, 0);
  NumericRow at_zero(arena_, sizes_, atoms, {.score_center = 0, .score_range = 0});
  NumericRow at_one(arena_, sizes_, atoms, {.score_center = 1, .score_range = 0});
  for (size_t key = 0; key < static_cast<size_t>(sizes_[kKeyAtom]); ++key) {
    const double slope = std::abs(at_one.value(softmax_.score, key) - at_zero.value(softmax_.score, key));
    if (slope > 1 / kLargest && slope < kLargest) {
      return slope;
    }
  }
  return 1;
}

// Whether an exponential of the module's probabilities is infinite in f32, or their row sum is 0 there, because they do
// not subtract the maximum of their own row: the module then gives no numbers, whatever its gradient is.
bool GradientCheck::overflows(NumericRow& numbers) const {
  constexpr double kLargestOfF32 = 88.7;
  constexpr double kZeroInF32 = 0x1p-150;  // half of the smallest number
  if (softmax_.maximum == kNoSym && softmax_.sinks.empty()) {
    const double sum = numbers.value(softmax_.denominator, 0);
    if (0 < sum && sum < kZeroInF32) {
      return true;
    }
  }
  return any_part({parts_.undropped}, [&](SymId id, std::vector<SymId>& next) {
    arena_.push_args(id, next);
    return arena_.is_op(id, Op::k_exp) &&
           std::ranges::any_of(numbers.values(arena_[id].args[0]),
                               [](const auto& exponent) { return exponent.f > kLargestOfF32; });
  });
}

// Whether no row meets the condition with all of its keys, as none is left out whole by a causal mask.
bool GradientCheck::is_impossible(const Met& met) const {
  return keeps_a_key_(met.holds ? arena_.op(Op::k_not, {met.condition}) : met.condition);
}

// Changes the seed, which selects the half of the keys that meet the conditions, if these are all keys that do not meet
// them by their positions, although there is no such row.
void GradientCheck::leave_a_key(const std::vector<int64_t>& atoms, Draw& draw) const {
  constexpr int kMostTries = 8;
  if (draw.met.empty() || draw.met_by_all) {
    return;
  }
  const auto met_by_all_keys = [&](const Met& met) {
    NumericRow numbers(arena_, sizes_, atoms, draw);
    for (size_t key = 0; key < static_cast<size_t>(sizes_[kKeyAtom]); ++key) {
      if (numbers.holds(met.condition, key) != met.holds) {
        return false;
      }
    }
    return true;
  };
  for (int tries = 0; tries < kMostTries; ++tries) {
    if (std::none_of(draw.met.begin(), draw.met.end(), [&](const Met& met) {
          return met.number == kNoSym && met_by_all_keys(met) && is_impossible(met);
        })) {
      return;
    }
    ++draw.seed;
  }
}

// Makes all keys of a row meet the draws' conditions, where that is possible. If only half of the keys meet a
// condition, they may have no probability beside the others, for example if -40 is added to their scores.
std::vector<Draw> GradientCheck::by_all_keys(std::vector<Draw> draws) {
  std::erase_if(draws, [&](const Draw& draw) { return is_impossible(draw.met[0]); });
  for (Draw& draw : draws) {
    draw.met_by_all = true;
  }
  return draws;
}

// Whether the formula is something other than 0 or NaN in a row without keys. A call leaves such rows out.
bool GradientCheck::makes_numbers_without_keys(SymId formula, NumericRow& numbers) const {
  bool makes_numbers = false;
  for (size_t key = 0; key < static_cast<size_t>(sizes_[kKeyAtom]); ++key) {
    const bool is_kept = std::all_of(softmax_.guards.begin(), softmax_.guards.end(),
                                     [&](SymId guard) { return numbers.holds(guard, key); });
    if (is_kept && numbers.value(softmax_.score, key) != -std::numeric_limits<double>::infinity()) {
      return false;
    }
    const double number = numbers.value(formula, key);
    makes_numbers = makes_numbers || (number != 0 && !std::isnan(number));
  }
  return makes_numbers;
}

// A row in which one key has all of the probability reveals nothing. This happens where scores are far apart: the row
// is then drawn again with scores nearer to each other and to 0.
Outcome<bool> GradientCheck::compare_row_narrowed(const std::vector<int64_t>& atoms, Draw draw,
                                                  const CompareRow& compare_row,
                                                  const std::function<void(NumericRow&)>& note) {
  constexpr int kMostNarrowings = 3;
  constexpr double kWanted = 8;  // the distance between the smallest and the largest score
  for (int narrowings = 0;; ++narrowings) {
    NumericRow numbers(arena_, sizes_, atoms, draw);
    Outcome<bool> shows = compare_row(numbers, draw);
    if (!shows.ok() || *shows) {
      if (shows.ok()) {
        note(numbers);
      }
      return shows;
    }
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    for (const auto& score : numbers.values(softmax_.score)) {
      low = std::min(low, score.f);
      high = std::max(high, score.f);
    }
    const double factor = kWanted / (high - low);
    if (!(factor > 0 && factor < 1) || narrowings == kMostNarrowings || !draw.conditions.empty()) {
      return false;
    }
    draw.score_center *= factor;
    draw.score_range *= factor;
  }
}

Proof GradientCheck::is_probability(SymId formula) {
  return compare_rows(formula, [&](NumericRow& numbers, const Draw&) -> Outcome<bool> {
    Spread spread;
    for (size_t key = 0; key < static_cast<size_t>(sizes_[kKeyAtom]); ++key) {
      const double p = numbers.value(parts_.probability, key);
      if (std::isnan(p)) {
        return makes_numbers_without_keys(formula, numbers) ? refuse<Reason::kNotProbabilities>()
                                                            : Outcome<bool>(false);
      }
      if (!(std::abs(numbers.value(formula, key) - p) <= kTolerance * std::max(p, 1e-3))) {
        return refuse<Reason::kNotProbabilities>();
      }
      spread.add(numbers.value(parts_.undropped, key));
    }
    return spread.shows();
  });
}

namespace {

// The probabilities of a row and their gradients.
struct Row {
  std::vector<double> p;
  std::vector<double> d_p;
  double p_d_p = 0;  // summed over the keys, minus the gradient of the log-sum-exp
  bool has_keys = true;
};

Row row_of(NumericRow& numbers, const GradientParts& parts, const Softmax& softmax, size_t keys) {
  Row row{.p = std::vector<double>(keys), .d_p = std::vector<double>(keys)};
  for (size_t key = 0; key < keys; ++key) {
    row.p[key] = numbers.value(parts.undropped, key);
    row.has_keys = row.has_keys && !std::isnan(row.p[key]);
    row.d_p[key] = numbers.value(parts.d_probability, key) * softmax.keep_factor;
    for (const SymId condition : softmax.keep) {
      row.d_p[key] = numbers.holds(condition, key) ? row.d_p[key] : 0;
    }
    row.p_d_p += row.p[key] * row.d_p[key];
  }
  row.p_d_p -= parts.d_lse == kNoSym ? 0 : numbers.value(parts.d_lse, 0);
  return row;
}

}  // namespace

Proof GradientCheck::is_gradient(SymId formula, SymId shifted) {
  if (parts_.d_probability == kNoSym) {
    return refuse<Reason::kNoProbabilityGradient>();
  }
  const auto keys = static_cast<size_t>(sizes_[kKeyAtom]);
  return compare_rows(
      formula,
      [&](NumericRow& numbers, const Draw& draw) -> Outcome<bool> {
        const Row row = row_of(numbers, parts_, softmax_, keys);
        if (!row.has_keys) {
          return makes_numbers_without_keys(formula, numbers) ? refuse<Reason::kNotGradientOfScores>()
                                                              : Outcome<bool>(false);
        }
        Spread spread;
        for (size_t key = 0; key < keys; ++key) {
          const double p = row.p[key];
          spread.add(p);
          const double slope = p == 0 ? 0 : numbers.derivative(shifted, key);
          const double expected = p * (row.d_p[key] - row.p_d_p) * slope;
          const double size = std::max(p * (std::abs(row.d_p[key]) + std::abs(row.p_d_p)), 1e-6 * draw.gradient_range) *
                              std::max(1.0, std::abs(slope));
          if (std::abs(draw.score_center) > kLargestExponent && !std::isfinite(expected)) {
            continue;  // an intermediate exponential overflows
          }
          if (!std::isfinite(size) || !(std::abs(numbers.value(formula, key) - expected) <= kTolerance * size)) {
            return refuse<Reason::kNotGradientOfScores>();
          }
        }
        return spread.shows();
      },
      shifted);
}

Proof GradientCheck::is_sinks_gradient(SymId formula) {
  const auto keys = static_cast<size_t>(sizes_[kKeyAtom]);
  return compare_rows(formula, [&](NumericRow& numbers, const Draw& draw) -> Outcome<bool> {
    const Row row = row_of(numbers, parts_, softmax_, keys);
    const auto largest = static_cast<size_t>(std::max_element(row.p.begin(), row.p.end()) - row.p.begin());
    // (Beside a smaller probability, the exponential below would be infinite.)
    if (!row.has_keys || row.p[largest] < std::numeric_limits<double>::min()) {
      return false;
    }
    const double logit = numbers.value(softmax_.sinks[0], 0);
    const double p_sink = std::exp(logit - numbers.value(softmax_.score, largest)) * row.p[largest];
    const double size = std::max(p_sink * std::abs(row.p_d_p), 1e-6 * draw.gradient_range);
    if (!std::isfinite(size) || !(std::abs(numbers.value(formula, 0) + p_sink * row.p_d_p) <= kTolerance * size)) {
      return refuse<Reason::kNotGradientOfSinks>();
    }
    constexpr double kLeastProbability = 1e-9;
    return p_sink > kLeastProbability && row.p[largest] > kLeastProbability;
  });
}

}  // namespace flashlift::stablehlo
