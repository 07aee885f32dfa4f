// Formulas taken apart: a product of conditions, an exponential of a sum, and factors.
#pragma once

#include <vector>

#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

struct SignedTerm {
  SymId term = kNoSym;
  bool negative = false;
  auto operator<=>(const SignedTerm&) const = default;
};

struct Product {
  std::vector<SymId> guards;         // i1: the product is 0 unless all hold
  std::vector<SymId> clears;         // those of them that make it 0 even where it is NaN: of a select
  std::vector<SignedTerm> exponent;  // of e
  std::vector<SymId> over;           // divided by these
  std::vector<SymId> times;          // multiplied by these
  // A guard of a divisor was left out, or a clean-up of NaN: it does nothing where each row of keys sums to a number in
  // [1, kLargestSum], and acts where exponentials vanish or overflow. match_softmax() proves the former.
  bool has_guard = false;
  // Divided by a number whose logarithm was first added to another number of the row: log z + m, a log-sum-exp. Where m
  // is large, f32 has no room for log z beside it.
  bool rounds_logarithm = false;
  // Differences of scores and a number that all scores of the row make, beside which another number of the key is
  // added, or is the exponent of another factor. In one sum with a very negative score that would be lost; so it is
  // not.
  std::vector<SymId> apart;
};

// Sums of exponentials below 1 stay below it: more keys than any tensor has.
inline constexpr float kLargestSum = 0x1p40F;

// Every formula is a product, if only of itself.
Product as_product(SymArena& arena, SymId formula);
// The product that e^formula is.
Product as_exponent(SymArena& arena, SymId formula);
void multiply(Product& product, const Product& factor);
void divide(SymArena& arena, Product& product, SymId divisor);

// Whether a formula replaces its own NaN, as nan_to_num does.
bool clears_nan(const SymArena& arena, SymId formula);

// A sum of terms as a formula again.
SymId sum_of(SymArena& arena, const std::vector<SignedTerm>& terms);
// Adds a condition to a list, a conjunction as its parts, each once.
void add_guard(SymArena& arena, std::vector<SymId>& guards, SymId condition);
// The formula where the condition is known to hold.
SymId assume(SymArena& arena, SymId formula, SymId condition);
// 0 or -0.
bool is_zero(const SymArena& arena, SymId id);

}  // namespace flashlift::stablehlo
