// Proving that a formula is a softmax over keys, from its algebra alone.
//
// A formula is taken apart into a product: conditions that must hold (else it is 0), the sum in the exponent of e, and
// factors. It is a softmax if its part that depends on the key is e^S under some conditions, and it is divided by the
// sum of the same over all keys; what depends on the row alone (a subtracted maximum, whatever it is) must be the same
// above and below, and cancels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "flashlift/problem.h"
#include "stablehlo/algebra/bounds.h"
#include "stablehlo/algebra/product.h"
#include "stablehlo/algebra/reason.h"

namespace flashlift::stablehlo {

// What a softmax over keys was found to be of.
struct Softmax {
  std::vector<SymId> guards;  // keys that are kept, beside those whose score is -inf
  SymId score = kNoSym;       // S, over the score and the atoms
  std::vector<SymId> sinks;   // logits of keys without value, one for each piece of the reduction
  std::vector<int64_t> sink_sizes;
  std::vector<int> sink_atoms;  // bound atom that runs over a piece of sinks, or -1
  EmptyRows empty_rows = EmptyRows::kNan;
  // Behind the softmax, a probability is multiplied by keep_factor if these hold, and is 0 otherwise: dropout.
  std::vector<SymId> keep;
  float keep_factor = 1;
  bool keep_selects = false;           // by a select, which clears NaN too, and not by a product with 0
  std::vector<SignedTerm> key_terms;   // whose sum is the score
  SymId denominator = kNoSym;          // the reduction that divides
  std::vector<SignedTerm> subtracted;  // row terms of the exponent, the same in the denominator
  // Set if what is subtracted is the maximum of exactly what is summed: each row of keys then sums to 1 or more.
  SymId maximum = kNoSym;
  // Something does nothing only because each row of keys sums to 1 or more: a guard of the divisor, a clean-up.
  bool needs_maximum = false;
  // A condition sets rows without keys to 0, and rows that are NaN with them: 0 < z, a maximum that is finite.
  bool clears_nan = false;
  bool rounds_logarithm = false;  // as Product's, and the next
  std::vector<SymId> apart;
};

// The product is the whole of what multiplies the values.
Outcome<Softmax> match_softmax(SymArena& arena, const Product& product);

// What may leave a row without keys: the softmax's conditions, and tensors that the scores read, by -inf.
struct EmptiedBy {
  bool conditions = false;
  bool data = false;
};

// What a row gives that has no key left, by computing such rows of the formula of what multiplies the values, at drawn
// positions (below `sizes` of the atoms) and with drawn elements of tensors.
// kRowsWithoutKeys for rows that give none of zero, uniform and NaN, or not the same; kRowsEmptiedByData for two that
// differ.
Outcome<EmptyRows> classify_empty_rows(SymArena& arena, const std::vector<int64_t>& sizes, SymId probability,
                                       const Softmax& softmax, EmptiedBy by);

// The formula of the softmax where each probability is kept, and not multiplied by keep_factor.
SymId without_dropout(SymArena& arena, SymId probability, const Softmax& softmax);

// What the row maximum is of, for the key at hand: the body of its reduction over the keys. Nothing without one.
std::optional<SymId> body_of_maximum(const SymArena& arena, const Softmax& softmax);
// What a formula of rows gives for such rows; nothing where they differ.
std::optional<float> value_in_empty_row(SymArena& arena, const std::vector<int64_t>& sizes, SymId formula,
                                        const Softmax& softmax, EmptiedBy by);

// Whether a formula is the log-sum-exp of that softmax's scores.
bool is_log_sum_exp(SymArena& arena, SymId formula, const Softmax& softmax);

// Whether conditions surely leave a key in each row: one that the conditions themselves point at, such as the row's
// own.
bool keeps_a_key(SymArena& arena, const KnownBounds& given, const std::vector<SymId>& conditions, int64_t keys);

// Scores that a finite constant masks (`condition ? score : -1e9`, or the same added) mask by their value only.
enum class FiniteMasks : uint8_t {
  kNone,            // they stay arithmetic
  kInRowsWithKeys,  // the condition masks; each row surely keeps a key
  kInAllRows,       // the condition masks; the scores of a row that keeps none are all the same number
};

// Whether a score has any.
bool has_finite_masks(SymArena& arena, SymId score);

// The conditions of a score's finite masks; none where they surely leave a key in each row.
std::vector<SymId> masks_of_whole_rows(SymArena& arena, const KnownBounds& given, SymId score);

// Moves the conditions of finite masks into the guards where that is proved to change nothing: in each row, either a
// score that is kept lies so far above all masked ones that their exponentials are 0 beside its own, or all scores of
// the row are one and the same number. `all_rows_count`: a row of masked scores that were only changed, not replaced,
// is something else than one without keys, as it is for gradients.
FiniteMasks extract_finite_masks(SymArena& arena, Softmax& softmax, const KnownBounds& given, bool all_rows_count);

}  // namespace flashlift::stablehlo
