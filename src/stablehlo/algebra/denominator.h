// The divisor of a softmax: the sum of the numerator's exponentials over the keys, and sinks.
#pragma once

#include <vector>

#include "stablehlo/algebra/softmax.h"

namespace flashlift::stablehlo {

// Separates the score's terms from those that are computed from all scores of the row, which cancel. Terms that depend
// on the row but not on its scores would cancel, too, but stay with the score, since the log-sum-exp contains them.
struct RowTerms {
  std::vector<SignedTerm> of_key;
  std::vector<SignedTerm> of_row;
};
RowTerms partition(const SymArena& arena, const std::vector<SignedTerm>& terms);

// The parts of a divisor: pieces of its reductions, and the terms added to them, each of which is a sink. A constant is
// a part only if nothing is subtracted from the scores; otherwise it would be a sink with a different logit in each
// row. A constant so small that adding it to 1 has no effect is not a part but a guard, if the sum is at least 1.
Outcome<std::vector<ReducePiece>> parts_of_divisor(const SymArena& arena, SymId z, bool subtracts, bool& guarded);

bool holds_row_sum(const SymArena& arena, SymId z);

// The softmax with this numerator and divisor. Conditions on the numerator alone are dropout.
Outcome<Softmax> match_denominator(SymArena& arena, const Product& numerator, SymId z);

}  // namespace flashlift::stablehlo
