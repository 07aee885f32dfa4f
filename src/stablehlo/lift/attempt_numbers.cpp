// Formulas of a gradient compared in numbers with what they must be.
//
// Producers write the derivative of a softmax in many ways, and all of them are right. So what leaves the score plane
// is not taken apart, but compared with p (d_p - sum p d_p) ds/dterm in numbers (numeric.h).
#include <algorithm>
#include <cmath>

#include "stablehlo/lift/attempt.h"
#include "stablehlo/lift/numeric.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

constexpr int kDraws = 6;
constexpr int kMostRows = 12;        // compared in each draw
constexpr int64_t kMostKeys = 8192;  // in these together
constexpr double kTolerance = 1e-6;  // of the largest term
constexpr double kStep = 1e-4;       // of the differences that give a derivative

}  // namespace

SymId Attempt::score_with_shift(SymId of) {
  const SymId shift = arena_.load(kShift, Type::kF32, {});
  return arena_.replace(softmax_.score, of, arena_.op(Op::k_add, {of, shift}));
}

Status Attempt::compare_rows(SymId formula, const CompareRow& compare_row) {
  std::vector<SymId> known = {whole_, softmax_.score};
  if (gradient_formula_ != kNoSym) {
    known.push_back(gradient_formula_);
  }
  if (!reads_within(arena_, formula, known)) {
    return unsupported("a gradient reads or branches on what the scores do not");
  }
  const std::vector<int64_t>& atom_sizes = evaluator_->atom_sizes();
  const auto rows = static_cast<int>(std::clamp<int64_t>(kMostKeys / sizes_[kKeyAtom], 2, kMostRows));
  int compared = 0;
  for (uint64_t trial = 0; trial < kDraws; ++trial) {
    // A gradient that is clipped somewhere, or a score that is, shows in a large draw; integers are ids or lengths.
    const Draw draw{.seed = 17 * trial + 1,
                    .score_range = trial % 2 == 0 ? 4.0 : 30.0,
                    .gradient = gradient_formula_ == kNoSym ? -1 : arena_[gradient_formula_].payload,
                    .gradient_range = trial % 3 == 0 ? 1.0 : 1e6,
                    .integer_range = trial < 3 ? 3 : sizes_[kKeyAtom] + 1};
    for (int row = 0; row < rows; ++row) {
      std::vector<int64_t> atoms(kMaxAtoms, 0);
      for (size_t atom = 1; atom < atoms.size(); ++atom) {
        atoms[atom] = static_cast<int64_t>((trial * 7919 + static_cast<uint64_t>(row) * 104729 + atom * 1299709) %
                                           static_cast<uint64_t>(std::max<int64_t>(atom_sizes[atom], 1)));
      }
      NumericRow numbers(arena_, atom_sizes, atoms, draw);
      FLASHLIFT_ASSIGN_OR_RETURN(const bool is_row, compare_row(numbers, draw));
      compared += is_row ? 1 : 0;
    }
  }
  return compared >= kDraws ? Status()
                            : unsupported("too few rows of the score plane could be compared with a gradient");
}

Status Attempt::compare_probabilities(SymId formula) {
  return compare_rows(formula, [&](NumericRow& numbers, const Draw&) -> Result<bool> {
    for (size_t key = 0; key < static_cast<size_t>(sizes_[kKeyAtom]); ++key) {
      const double p = numbers.value(whole_, key);
      if (std::isnan(p)) {
        return false;
      }
      if (!(std::abs(numbers.value(formula, key) - p) <= kTolerance * std::max(p, 1e-3))) {
        return unsupported("what is multiplied with the output's gradient is not the probabilities");
      }
    }
    return true;
  });
}

Status Attempt::compare_gradient(SymId formula, SymId shifted) {
  if (gradient_formula_ == kNoSym) {
    return unsupported("a gradient by queries or keys without one by the probabilities");
  }
  const auto keys = static_cast<size_t>(sizes_[kKeyAtom]);
  return compare_rows(formula, [&](NumericRow& numbers, const Draw& draw) -> Result<bool> {
    std::vector<double> p(keys);
    std::vector<double> d_p(keys);
    double p_d_p = 0;
    for (size_t key = 0; key < keys; ++key) {
      p[key] = numbers.value(whole_, key);
      if (std::isnan(p[key])) {
        return false;  // a row without keys
      }
      d_p[key] = numbers.value(gradient_formula_, key);
      p_d_p += p[key] * d_p[key];
    }
    std::vector<double> found(keys);
    std::vector<double> above(keys);
    for (size_t key = 0; key < keys; ++key) {
      found[key] = numbers.value(formula, key);
    }
    numbers.shift(kStep);
    for (size_t key = 0; key < keys; ++key) {
      above[key] = numbers.value(shifted, key);
    }
    numbers.shift(-kStep);
    for (size_t key = 0; key < keys; ++key) {
      const double slope = (above[key] - numbers.value(shifted, key)) / (2 * kStep);
      const double expected = p[key] == 0 ? 0 : p[key] * (d_p[key] - p_d_p) * slope;
      const double size = std::max(p[key] * (std::abs(d_p[key]) + std::abs(p_d_p)), 1e-6 * draw.gradient_range) *
                          std::max(1.0, std::abs(slope));
      if (!(std::abs(found[key] - expected) <= kTolerance * size)) {
        return unsupported("what leaves the scores is not the gradient by them");
      }
    }
    return true;
  });
}

}  // namespace flashlift::stablehlo
