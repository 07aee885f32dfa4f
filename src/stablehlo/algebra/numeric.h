// Evaluates formulas numerically, one row of the score plane at a time, over tensors with random contents.
//
// Two formulas that give the same numbers at random places of random tensors are the same function, if neither has
// branches that the other does not have (see reads_within): different smooth functions differ almost everywhere.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "score/scalar.h"
#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

// Differentiate with respect to this load, evaluated at 0.
inline constexpr int64_t kShift = -2;
// This load is any number of the row, which takes the place of a formula.
inline constexpr int64_t kGiven = -3;

// Makes a condition hold, or not.
struct Met {
  SymId condition = kNoSym;
  bool holds = false;
  // If the condition compares this number, the number is set to that of `bound`, plus `distance` in units of its size.
  // Other formulas that compare both, such as the smaller of both, follow then. Otherwise the condition itself is set.
  SymId number = kNoSym;
  SymId bound = kNoSym;
  double distance = 0;
};

// How the product's score of a key follows from the drawn one, drawn / scale + offset.
struct KeyScore {
  double offset = 0;
  double scale = 1;
};

// The contents of a draw's tensors.
struct Draw {
  uint64_t seed = 0;
  double score_center = 0;
  double score_range = 4;            // scores are within +- this of the center
  double score_scale = 1;            // those of the product are divided by this
  std::vector<KeyScore> key_scores;  // of each key, or empty
  bool zero_scores = false;          // those of about half of the keys are 0, as zeros in queries or keys make them
  int64_t gradient = -1;             // the leaf that is the gradient of the probabilities, or -1
  double gradient_range = 1;         // its elements are within +- this
  double load_center = 0.75;
  double load_range = 0.5;                         // other floats are within +- this of the center
  int64_t integer_range = 4;                       // integers are in [0, this)
  std::vector<std::pair<SymId, bool>> conditions;  // conditions that are set to hold for all keys, or for none
  std::vector<Met> met;                            // for about half of the keys
  bool met_by_all = false;                         // for all keys, instead of half of them
  bool draws_positions = false;  // steps, and maxima of positions and integers, are drawn instead of computed
  SymId drawn = kNoSym;          // a formula that is drawn like the scores instead of computed
};

class NumericRow {
 public:
  // atoms: the value of each index variable, by number; that of the key is not read. sizes: of the atoms.
  NumericRow(const SymArena& arena, std::vector<int64_t> sizes, std::vector<int64_t> atoms, const Draw& draw)
      : arena_(arena), sizes_(std::move(sizes)), atoms_(std::move(atoms)), draw_(draw) {}

  // One number per key, or a single one if the formula does not depend on the key.
  const std::vector<score::Scalar<double>>& values(SymId id);
  double value(SymId id, size_t key) {
    const auto& column = values(id);
    return column[column.size() == 1 ? 0 : key].f;
  }
  bool holds(SymId condition, size_t key) {
    const auto& column = values(condition);
    return column[column.size() == 1 ? 0 : key].i != 0;
  }
  // The derivative of the formula with respect to kShift: NaN if the formula reduces over a value that depends on it.
  double derivative(SymId id, size_t key);

 private:
  const std::vector<double>& derivatives(SymId id);
  double derivative_of_operation(const Sym& sym, double value, const std::vector<double>& args,
                                 const std::vector<double>& slopes) const;
  std::vector<score::Scalar<double>> compute(SymId id);
  void meet(SymId id, std::vector<score::Scalar<double>>& column);
  std::vector<score::Scalar<double>> reduce(SymId id);
  score::Scalar<double> load(const Sym& sym, size_t key);
  std::vector<score::Scalar<double>> drawn_scores(uint64_t row, size_t count, double scale) const;
  score::Scalar<double> drawn_position(SymId id, size_t key) const;
  score::Scalar<double> at(SymId id, size_t key) {
    const auto& column = values(id);
    return column[column.size() == 1 ? 0 : key];
  }

  const SymArena& arena_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> atoms_;
  Draw draw_;
  std::map<SymId, std::vector<score::Scalar<double>>> memo_;
  std::map<SymId, std::vector<double>> derivatives_;
};

// The formulas, and all that they contain.
std::set<SymId> parts_of(const SymArena& arena, const std::vector<SymId>& formulas);
// Whether `formula` reads only elements that `known` read, and branches only on their conditions: then both are smooth
// on the same pieces. Three other comparisons are allowed: of the row maximum with the scores that it is the maximum of
// (each row has keys on both sides of it), with numbers that may be larger, or with infinity; of a sum of exponentials
// with 0, which is the same for all rows with keys; and of a row's log-sum-exp or its sink with +inf, which holds for
// no row of numbers.
bool reads_within(const SymArena& arena, SymId formula, const std::vector<SymId>& known,
                  const std::vector<SymId>& sinks = {});
// The number of the row that the condition compares with +inf, as JAX's derivative of logaddexp does. kNoSym for other
// conditions.
SymId compared_with_infinity(const SymArena& arena, SymId condition);

// The conditions on which formulas branch, except those that depend on a reduction.
std::vector<SymId> conditions_of(const SymArena& arena, const std::vector<SymId>& formulas);

// Whether `formula` applies only functions (exponentials, sigmoids, roots) that `known`, their derivatives or the
// exponentials of a softmax apply. Formulas with other functions may change far from all draws.
bool computes_within(SymArena& arena, SymId formula, const std::vector<SymId>& known);

// Whether `formula` rounds to 16 bits only values that `known` round. Numbers are compared without rounding.
bool rounds_within(const SymArena& arena, SymId formula, const std::vector<SymId>& known);

// Numbers from here on count as infinity: scores of the product are smaller.
inline constexpr double kInfiniteNumber = 0x1p24;

// The largest number with which the formulas compare floats, or at which they clip them: nothing if they do neither, 0
// if it is not a constant. Infinite numbers do not count as thresholds, nor does the row maximum.
std::optional<double> largest_threshold(const SymArena& arena, const std::vector<SymId>& formulas);

}  // namespace flashlift::stablehlo
