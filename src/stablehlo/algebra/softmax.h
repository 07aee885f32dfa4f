// Proves that a formula is a softmax over keys, by algebra alone.
//
// A formula is decomposed into a product: conditions that must hold (otherwise it is 0), the sum in the exponent of e,
// and factors. It is a softmax if its part that depends on the key is e^S under some conditions, and it is divided by
// the sum of the same part over all keys. Terms that depend on the row alone, such as any subtracted maximum, must be
// the same in numerator and denominator, and cancel.
#pragma once

#include <optional>
#include <vector>

#include "flashlift/problem.h"
#include "stablehlo/algebra/bounds.h"
#include "stablehlo/algebra/product.h"
#include "stablehlo/algebra/reason.h"

namespace flashlift::stablehlo {

// The parts of a softmax over keys.
struct Softmax {
  std::vector<SymId> guards;  // conditions of kept keys; keys with a score of -inf are masked as well
  SymId score = kNoSym;       // S, over the score and the atoms
  std::vector<SymId> sinks;   // logits without a value, one for each piece of the reduction
  std::vector<int64_t> sink_sizes;
  std::vector<int> sink_atoms;  // bound atom that runs over a piece of sinks, or -1
  EmptyRows empty_rows = EmptyRows::kNan;
  // After the softmax, a probability is multiplied by keep_factor if these hold, and is 0 otherwise: dropout.
  std::vector<SymId> keep;
  float keep_factor = 1;
  bool keep_selects = false;           // some of them by a select, which also replaces NaN
  bool keep_multiplies = false;        // some of them by a product with 0, which does not
  std::vector<SignedTerm> key_terms;   // their sum is the score
  SymId denominator = kNoSym;          // the reduction in the divisor
  std::vector<SignedTerm> subtracted;  // row terms of the exponent, the same in the denominator
  // True if the subtracted number is the maximum of exactly the summed scores: each row of keys then sums to 1 or more.
  SymId maximum = kNoSym;
  // True if a guard of the divisor, or a replacement of NaN, has no effect only because each row of keys sums to 1 or
  // more.
  bool needs_maximum = false;
  // True if a condition sets rows without keys to 0, and NaN rows as well: 0 < z, a finite maximum.
  bool clears_nan = false;
  bool rounds_logarithm = false;  // see Product, also for the next
  std::vector<SymId> apart;
};

// `whole` is the complete factor of the values.
Outcome<Softmax> match_softmax(SymArena& arena, const Product& whole);

// Reasons why a row may have no keys: the softmax's conditions, and -inf in tensors that the scores read.
struct EmptiedBy {
  bool conditions = false;
  bool data = false;
};

// The output of a row that has no key left. It evaluates the factor of the values for such rows, at drawn positions
// (below `sizes` of the atoms) and with drawn elements of tensors. Refused with kRowsWithoutKeys if rows give none of
// zero, uniform and NaN, or do not agree; with kRowsEmptiedByData or kRowsEmptiedByOneMask if rows differ that data and
// conditions, or different conditions, leave without keys.
Outcome<EmptyRows> classify_empty_rows(SymArena& arena, const std::vector<int64_t>& sizes, SymId probability,
                                       const Softmax& softmax, EmptiedBy by);

// The value of a row formula for such rows; nothing if they differ.
std::optional<float> value_in_empty_row(SymArena& arena, const std::vector<int64_t>& sizes, SymId formula,
                                        const Softmax& softmax, EmptiedBy by);

// The formula of the softmax without dropout: each probability is kept, and not multiplied by keep_factor.
SymId without_dropout(SymArena& arena, SymId probability, const Softmax& softmax);

// The body of the row maximum's reduction over the keys. Nothing if there is no maximum.
std::optional<SymId> body_of_maximum(const SymArena& arena, const Softmax& softmax);

// Whether a formula is the log-sum-exp of that softmax's scores.
bool is_log_sum_exp(SymArena& arena, SymId formula, const Softmax& softmax);

// Whether conditions provably keep a key in each row: one that the conditions themselves determine, such as the row's
// own key.
bool keeps_a_key(SymArena& arena, const KnownBounds& given, const std::vector<SymId>& conditions, int64_t keys);

// How to treat scores that a finite constant masks (`condition ? score : -1e9`, or the same added).
enum class FiniteMasks : uint8_t {
  kNone,            // they stay arithmetic in the score
  kInRowsWithKeys,  // the condition becomes a mask; each row provably keeps a key
  kInAllRows,       // the condition becomes a mask; in a row without kept keys, all scores are the same number
};

// Whether a score has such masks.
bool has_finite_masks(SymArena& arena, SymId score);

// The conditions of a score's finite masks; none if they provably keep a key in each row.
std::vector<SymId> masks_of_whole_rows(SymArena& arena, const KnownBounds& given, SymId score);

// Moves the conditions of finite masks into the guards if this provably changes nothing: in each row, either a kept
// score is so far above all masked ones that their exponentials are 0 compared with its own, or all scores of the row
// are the same number. `all_rows_count`: a row of masked scores that were only changed, not replaced, differs from a
// row without keys, as for gradients.
FiniteMasks extract_finite_masks(SymArena& arena, Softmax& softmax, const KnownBounds& given, bool all_rows_count);

}  // namespace flashlift::stablehlo
