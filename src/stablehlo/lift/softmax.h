// Proving that a formula is a softmax over keys, from its algebra alone. No MLIR here.
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
#include "flashlift/result.h"
#include "stablehlo/lift/product.h"

namespace flashlift::stablehlo {

// What a softmax over keys was found to be of.
struct Softmax {
  std::vector<SymId> guards;  // keys that are kept, beside those whose score is -inf
  SymId score = kNoSym;       // S, over the score and the atoms
  std::vector<SymId> sinks;   // logits of keys without value, one for each piece of the reduction
  std::vector<int64_t> sink_sizes;
  std::vector<int> sink_atoms;  // bound atom that runs over a piece of sinks, or -1
  EmptyRows empty_rows = EmptyRows::kNan;
  std::vector<SignedTerm> key_terms;   // whose sum is the score
  SymId denominator = kNoSym;          // the reduction that divides
  std::vector<SignedTerm> subtracted;  // row terms of the exponent, the same in the denominator
  // Set if what is subtracted is the maximum of exactly what is summed: each row of keys then sums to 1 or more.
  SymId maximum = kNoSym;
  // Something does nothing only because each row of keys sums to 1 or more: a guard of the divisor, a clean-up.
  bool needs_maximum = false;
};

// The product is the whole of what multiplies the values. Errors are kUnsupported with the reason.
Result<Softmax> match_softmax(SymArena& arena, const Product& product);

// What a row gives that has no key left, by computing such a row of the formula of what multiplies the values. Errors:
// kUnsupported for a row that gives none of zero, uniform and NaN.
Result<EmptyRows> classify_empty_rows(SymArena& arena, SymId probability, const Softmax& softmax);

// What the row maximum is of, for the key at hand: the body of its reduction over the keys. Nothing without one.
std::optional<SymId> body_of_maximum(const SymArena& arena, const Softmax& softmax);

// Whether a formula is the log-sum-exp of that softmax's scores.
bool is_log_sum_exp(SymArena& arena, SymId formula, const Softmax& softmax);

// A score that is `condition ? score : very negative` masks by its value: the condition moves into the guards. From
// -30000 on down, where e to any difference from a real score is 0 in f32. The same for a very negative number that is
// added, from -1e20 on down, where the sum is that number whatever the score, if `also_added`. True if it did.
bool extract_finite_mask(SymArena& arena, Softmax& softmax, bool also_added);

}  // namespace flashlift::stablehlo
