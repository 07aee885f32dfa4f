// Decomposes formulas into a product of conditions, an exponential of a sum, and factors.
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
  std::vector<SymId> clears;         // those guards that make it 0 even if it is NaN, because they are a select's
  std::vector<SignedTerm> exponent;  // of e
  std::vector<SymId> over;           // divided by these
  std::vector<SymId> times;          // multiplied by these
  // A guard of a divisor, or a replacement of NaN, was left out. It has no effect if each row of keys sums to a number
  // in [1, kLargestSum], but does if exponentials vanish or overflow. match_softmax() proves the former.
  bool has_guard = false;
  // The divisor's logarithm was first added to another number of the row: log z + m, a log-sum-exp. If m is large, f32
  // rounds log z away.
  bool rounds_logarithm = false;
  // Differences of scores and a number that is computed from all scores of the row, to which another number of the key
  // is added, directly or as the exponent of another factor. A sum with a very negative score would round this number
  // away, but the difference does not.
  std::vector<SymId> apart;
};

// Sums of exponentials up to 1 stay below it: it exceeds the number of keys of any tensor.
inline constexpr float kLargestSum = 0x1p40F;

// Every formula is a product, at least of itself.
Product as_product(SymArena& arena, SymId formula);
// e^formula as a product.
Product as_exponent(SymArena& arena, SymId formula);
void multiply(Product& product, const Product& factor);
void divide(SymArena& arena, Product& product, SymId divisor);

// Whether a formula replaces its own NaN, like nan_to_num.
bool clears_nan(const SymArena& arena, SymId formula);

// The formula of a sum of terms.
SymId sum_of(SymArena& arena, const std::vector<SignedTerm>& terms);
// Adds a condition to a list, each once; a conjunction is added as its parts.
void add_guard(SymArena& arena, std::vector<SymId>& guards, SymId condition);
// The formula under the assumption that the condition holds.
SymId assume(SymArena& arena, SymId formula, SymId condition);
// 0 or -0.
bool is_zero(const SymArena& arena, SymId id);

}  // namespace flashlift::stablehlo
