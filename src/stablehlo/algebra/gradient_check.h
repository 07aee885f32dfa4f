// Whether formulas are the gradients of an attention, compared in numbers (numeric.h).
//
// Producers write the derivative of a softmax in many ways, and all of them are right. So what leaves the score plane
// is not taken apart, but compared with p (d_p - sum p d_p + d_lse) ds/dterm at random places of random tensors.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "stablehlo/algebra/numeric.h"
#include "stablehlo/algebra/reason.h"
#include "stablehlo/algebra/softmax.h"
#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

// What the formulas of a gradient are made of.
struct GradientParts {
  SymId probability = kNoSym;    // with what divides the output
  SymId undropped = kNoSym;      // the probability before dropout
  SymId d_probability = kNoSym;  // the gradient by the probabilities, a load; kNoSym where nobody computes it
  SymId d_lse = kNoSym;          // the gradient by the log-sum-exp; kNoSym for 0
};

// The softmax's score with kShift added to one of its terms.
SymId score_with_shift(SymArena& arena, const Softmax& softmax, SymId term);

class GradientCheck {
 public:
  // sizes: of the atoms. rounds: whether gradients may round to 16 bits what the scores do not. masks: conditions of
  // finite masks, each of which may hold for no key of a row. keeps_a_key: whether a condition surely holds for a key of
  // each row.
  GradientCheck(SymArena& arena, const std::vector<int64_t>& sizes, const Softmax& softmax, const GradientParts& parts,
                bool rounds, std::vector<SymId> masks, std::function<bool(SymId)> keeps_a_key)
      : arena_(arena),
        sizes_(sizes),
        softmax_(softmax),
        parts_(parts),
        rounds_(rounds),
        masks_(std::move(masks)),
        keeps_a_key_(std::move(keeps_a_key)) {}

  // The formula is the probability.
  Proof is_probability(SymId formula);
  // The formula is the gradient by the score, times the score's derivative by what kShift is added to in `shifted`.
  Proof is_gradient(SymId formula, SymId shifted);
  // The formula is the gradient by the sinks.
  Proof is_sinks_gradient(SymId formula);

 private:
  // False for a row that shows nothing in this draw: one without keys, or with one key that has all of the probability.
  using CompareRow = std::function<Outcome<bool>(NumericRow&, const Draw&)>;
  // `shifted`: as above, if conditions of it count, too.
  Proof compare_rows(SymId formula, const CompareRow& compare_row, SymId shifted = kNoSym);
  // `note` is called for the row that shows something.
  Outcome<bool> compare_row_narrowed(const std::vector<int64_t>& atoms, Draw draw, const CompareRow& compare_row,
                                     const std::function<void(NumericRow&)>& note);
  bool makes_numbers_without_keys(SymId formula, NumericRow& numbers) const;
  std::vector<Draw> by_all_keys(std::vector<Draw> draws);

  SymArena& arena_;
  const std::vector<int64_t>& sizes_;
  const Softmax& softmax_;
  const GradientParts& parts_;
  bool rounds_;
  std::vector<SymId> masks_;
  std::function<bool(SymId)> keeps_a_key_;
};

}  // namespace flashlift::stablehlo
