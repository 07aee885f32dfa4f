// Checks by numerical comparison whether formulas are the gradients of an attention (numeric.h).
//
// Producers write the derivative of a softmax in many correct ways. The check therefore does not analyse the formulas.
// It compares them with p (d_p - sum p d_p + d_lse) ds/dterm at random places of random tensors.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "stablehlo/algebra/numeric.h"
#include "stablehlo/algebra/reason.h"
#include "stablehlo/algebra/softmax.h"
#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

// The parts of a gradient's formulas.
struct GradientParts {
  SymId probability = kNoSym;    // including the divisor of the output
  SymId undropped = kNoSym;      // the probability before dropout
  SymId d_probability = kNoSym;  // the gradient of the probabilities, a load; kNoSym if the module does not compute it
  SymId d_lse = kNoSym;          // the gradient of the log-sum-exp; kNoSym for 0
};

// The softmax's score with kShift added to one of its terms.
SymId score_with_shift(SymArena& arena, const Softmax& softmax, SymId term);

class GradientCheck {
 public:
  // sizes: of the atoms. rounds: whether gradients may have roundings to 16 bits that the scores do not have. masks:
  // conditions of finite masks, each of which may hold for no key of a row. keeps_a_key: whether a condition surely
  // holds for a key of each row.
  GradientCheck(SymArena& arena, const std::vector<int64_t>& sizes, const Softmax& softmax, const GradientParts& parts,
                bool rounds, std::vector<SymId> masks, std::function<bool(SymId)> keeps_a_key)
      : arena_(arena),
        sizes_(sizes),
        softmax_(softmax),
        parts_(parts),
        rounds_(rounds),
        masks_(std::move(masks)),
        keeps_a_key_(std::move(keeps_a_key)) {}

  // Whether the formula is the probability.
  Proof is_probability(SymId formula);
  // Whether the formula is the gradient of the score, times the score's derivative with respect to the term to which
  // `shifted` adds kShift.
  Proof is_gradient(SymId formula, SymId shifted);
  // Whether the formula is the gradient of the sinks.
  Proof is_sinks_gradient(SymId formula);

 private:
  // False for a row that shows nothing in this draw: one without keys, or with one key that has all of the probability.
  using CompareRow = std::function<Outcome<bool>(NumericRow&, const Draw&)>;
  Proof is_within(SymId formula, const std::vector<SymId>& known) const;
  std::map<SymId, SymId> conditions_of_finite_numbers(const std::vector<SymId>& formulas);
  // `shifted`: as above, if its conditions count, too.
  Proof compare_rows(SymId formula, const CompareRow& compare, SymId shifted = kNoSym);
  // `note` is called for the row that shows something.
  Outcome<bool> compare_row_narrowed(const std::vector<int64_t>& atoms, Draw draw, const CompareRow& compare_row,
                                     const std::function<void(NumericRow&)>& note);
  struct MaskedRow {
    std::vector<double> at_zero;                                // the score of each key for a product of 0
    std::vector<double> slopes;                                 // how fast it grows with the product
    std::set<double> numbers;                                   // the scores that do not, if others may be near them
    double highest = -std::numeric_limits<double>::infinity();  // of those at zero that grow
    bool has_far_keys = false;                                  // whether others are far below, but within reach
  };
  std::vector<std::pair<std::vector<int64_t>, Draw>> rows_near_masks() const;
  MaskedRow masked_row(const std::vector<int64_t>& atoms, Draw draw) const;
  static Draw near(double number, const MaskedRow& row, Draw draw);
  std::vector<int64_t> some_row(uint64_t trial, uint64_t row) const;
  int64_t gradient_leaf() const;
  bool makes_numbers_without_keys(SymId formula, NumericRow& numbers) const;
  bool has_numbers(const std::vector<int64_t>& atoms, const Draw& draw) const;
  double scale_of_scores() const;
  bool overflows(NumericRow& numbers) const;
  std::vector<Draw> by_all_keys(std::vector<Draw> draws);
  bool is_impossible(const Met& met) const;
  void leave_a_key(const std::vector<int64_t>& atoms, Draw& draw) const;

  SymArena& arena_;
  const std::vector<int64_t>& sizes_;
  const Softmax& softmax_;
  const GradientParts& parts_;
  bool rounds_;
  std::vector<SymId> masks_;
  std::function<bool(SymId)> keeps_a_key_;
};

}  // namespace flashlift::stablehlo
