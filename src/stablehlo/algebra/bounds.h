// Between which bounds a formula surely lies, whatever the tensors that it reads hold.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "score/interval.h"
#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

// What is known before a formula is looked at.
struct KnownBounds {
  const std::vector<int64_t>& sizes;  // of the atoms
  double largest_score;               // scores lie within +- this
  // What the elements of a leaf, by number, lie within; nothing for tensors that may hold anything.
  std::function<std::optional<score::Interval>(int64_t)> leaf;
};

class Bounds {
 public:
  Bounds(const SymArena& arena, const KnownBounds& given) : arena_(arena), given_(given) {}

  const score::Interval& of(SymId id);
  bool surely_holds(SymId condition) { return of(condition).lo == 1; }

  // A sum of multiples of formulas that are no sums, and a constant: what is added and subtracted again cancels. No
  // step of it wraps.
  struct Linear {
    std::map<SymId, int64_t> terms;
    int64_t constant = 0;
  };
  // Of an integer formula.
  const Linear& linear(SymId id);
  // The f32 number that the formula is, whatever its parts are: added to a very negative number, a score of ordinary
  // size is lost. Nothing if it is not one number.
  std::optional<float> number(SymId id);
  // What an f32 formula lies within if it surely is a finite number. A score of ordinary size does not take the lowest
  // number to -inf, as intervals that are rounded outward say.
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
