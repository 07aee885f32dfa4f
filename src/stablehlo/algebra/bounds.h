// Proven bounds of a formula, for any contents of the tensors that it reads.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "score/interval.h"
#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

// The known bounds of a formula's inputs.
struct KnownBounds {
  const std::vector<int64_t>& sizes;  // of the atoms
  double largest_score;               // scores are within +- this
  // The bounds of a leaf's elements, by number; nothing for tensors that may hold anything.
  std::function<std::optional<score::Interval>(int64_t)> leaf;
};

class Bounds {
 public:
  Bounds(const SymArena& arena, const KnownBounds& given) : arena_(arena), given_(given) {}

  const score::Interval& of(SymId id);
  bool surely_holds(SymId condition) { return of(condition).lo == 1; }

  // A constant plus multiples of formulas that are not sums; terms that are added and subtracted cancel. No step of it
  // wraps.
  struct Linear {
    std::map<SymId, int64_t> terms;
    int64_t constant = 0;
  };
  // For an integer formula.
  const Linear& linear(SymId id);
  // The f32 number that the formula has for any values of its parts, if there is one: a score of ordinary size is
  // rounded away when it is added to a very negative number.
  std::optional<float> number(SymId id);
  // The bounds of an f32 formula, if it is provably finite. A score of ordinary size does not turn the lowest number
  // into -inf, although intervals that are rounded outward suggest it.
  std::optional<score::Interval> finite(SymId id);

 private:
  std::optional<score::Interval> compute_finite(SymId id);
  score::Interval compute(SymId id);
  Linear compute_linear(SymId id);
  std::optional<score::Interval> compare(const Sym& sym);
  std::optional<score::Interval> range(const Linear& sum);

  const SymArena& arena_;
  const KnownBounds& given_;
  std::map<SymId, score::Interval> known_;
  std::map<SymId, Linear> linear_;
  std::map<SymId, std::optional<score::Interval>> finite_;
};

}  // namespace flashlift::stablehlo
