#include "stablehlo/algebra/denominator.h"

#include <algorithm>
#include <cmath>

#include "stablehlo/algebra/lists.h"
#include "stablehlo/algebra/row_shift.h"

namespace flashlift::stablehlo {
namespace {

bool depends_on_key(const SymArena& arena, SymId id) { return arena.depends_on(id, kKeyAtom); }

bool contains(const std::vector<SymId>& ids, SymId id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

// The terms of a sum under the assumption that the conditions hold.
std::vector<SignedTerm> where(SymArena& arena, const std::vector<SignedTerm>& terms,
                              const std::vector<SymId>& conditions) {
  if (conditions.empty()) {
    return terms;
  }
  SymId sum = sum_of(arena, terms);
  for (const SymId condition : conditions) {
    sum = assume(arena, sum, condition);
  }
  return as_exponent(arena, sum).exponent;
}

// The conditions that may select keys: those that depend on the key, and those on the row that do not depend on scores,
// since a mask may combine queries and keys. Without a condition on the key there are none: the others set whole rows
// to 0.
std::vector<SymId> masks_of_keys(const SymArena& arena, const std::vector<SymId>& guards) {
  std::vector<SymId> masks;
  bool any_of_key = false;
  for (const SymId guard : guards) {
    const SymId positive = arena.is_op(guard, Op::k_not) ? arena[guard].args[0] : guard;
    const bool is_of_key = depends_on_key(arena, guard);
    any_of_key = any_of_key || is_of_key;
    if (is_of_key || (!arena[guard].has_score && arena[positive].kind != SymKind::kReduce)) {
      masks.push_back(guard);
    }
  }
  return any_of_key ? masks : std::vector<SymId>();
}

void add_sink(Softmax& softmax, SymId logit, int64_t size, int atom) {
  softmax.sinks.push_back(logit);
  softmax.sink_sizes.push_back(size);
  softmax.sink_atoms.push_back(atom);
}

// Adds a part of the divisor that is not a sum over keys: e^(logit - what is subtracted).
Proof read_sink(SymArena& arena, const ReducePiece& piece, const Product& body,
                const std::vector<SignedTerm>& subtracted, Softmax& softmax) {
  std::vector<SignedTerm> logit = body.exponent;
  for (const SignedTerm& term : subtracted) {
    const auto same = std::find(logit.begin(), logit.end(), term);
    if (same == logit.end()) {
      return refuse<Reason::kPartShifted>();
    }
    logit.erase(same);
  }
  if (!body.guards.empty()) {
    return refuse<Reason::kMaskedSinks>();
  }
  add_sink(softmax, sum_of(arena, logit), piece.size, piece.atom);
  return {};
}

// Adds the conditions of the numerator that the sum lacks, as dropout.
Proof read_dropout(const SymArena& arena, const Product& numerator, const Product& body, Softmax& softmax) {
  for (const SymId guard : masks_of_keys(arena, numerator.guards)) {
    if (contains(body.guards, guard)) {
      continue;
    }
    if (arena[guard].has_score) {
      return refuse<Reason::kConditionOnScores>();
    }
    softmax.keep.push_back(guard);
    (contains(numerator.clears, guard) ? softmax.keep_selects : softmax.keep_multiplies) = true;
  }
  return {};
}

// Reads the sum over keys, whose exponentials must be those of the numerator.
Proof read_keys(SymArena& arena, const Product& numerator, const RowTerms& terms, const Product& body,
                Softmax& softmax) {
  FLASHLIFT_RETURN_IF_ERROR(read_dropout(arena, numerator, body, softmax));
  const RowTerms summed = partition(arena, body.exponent);
  // Where the conditions fail, both are 0, or only the numerator is. They need to be equal where the conditions hold.
  std::vector<SymId> conditions = softmax.keep;
  append(conditions, body.guards);
  const bool are_equal =
      sorted(summed.of_key) == sorted(terms.of_key) ||
      sorted(where(arena, summed.of_key, conditions)) == sorted(where(arena, terms.of_key, conditions));
  const bool is_second = softmax.score != kNoSym;
  if (is_second || summed.of_key.empty() || !are_equal) {
    return refuse<Reason::kOtherExponentials>();
  }
  if (sorted(summed.of_row) != sorted(terms.of_row)) {
    return refuse<Reason::kSumShifted>();
  }
  for (const SymId guard : body.guards) {
    if (!contains(numerator.guards, guard)) {
      return refuse<Reason::kSumMasksMore>();
    }
  }
  softmax.guards = body.guards;
  softmax.score = sum_of(arena, summed.of_key);
  softmax.key_terms = summed.of_key;
  return {};
}

}  // namespace

RowTerms partition(const SymArena& arena, const std::vector<SignedTerm>& terms) {
  RowTerms parts;
  for (const SignedTerm& term : terms) {
    const bool is_statistic = arena[term.term].has_score && !depends_on_key(arena, term.term);
    (is_statistic ? parts.of_row : parts.of_key).push_back(term);
  }
  return parts;
}

Outcome<std::vector<ReducePiece>> parts_of_divisor(const SymArena& arena, SymId z, bool subtracts, bool& guarded) {
  constexpr float kLostBesideOne = 2.9e-8f;  // half an ulp below 1
  constexpr size_t kMostParts = 1024;
  std::vector<ReducePiece> parts;
  std::vector<SymId> stack{z};
  while (!stack.empty()) {
    if (parts.size() + stack.size() > kMostParts) {
      return refuse<Reason::kTooManyParts>(kMostParts);
    }
    const SymId id = stack.back();
    stack.pop_back();
    if (arena.is_op(id, Op::k_add)) {
      stack.insert(stack.end(), arena[id].args.begin(), arena[id].args.end());
    } else if (arena[id].kind == SymKind::kReduce && arena.reduce_kind(id) == ReduceKind::kAdd) {
      append(parts, arena.pieces(id));
    } else if (arena.is_constant(id)) {
      if (!subtracts && arena.f32_value(id) > 0) {
        parts.push_back({.body = id, .size = 1, .atom = -1});
      } else if (std::abs(arena.f32_value(id)) <= kLostBesideOne) {
        guarded = guarded || !is_zero(arena, id);
      } else {
        return refuse<Reason::kConstantInSum>();
      }
    } else {
      parts.push_back({.body = id, .size = 1, .atom = -1});
    }
  }
  return parts;
}

bool holds_row_sum(const SymArena& arena, SymId z) {
  return any_term(arena, z, {Op::k_add}, [&](SymId term) {
    return arena[term].kind == SymKind::kReduce && arena.reduce_kind(term) == ReduceKind::kAdd;
  });
}

Outcome<Softmax> match_denominator(SymArena& arena, const Product& numerator, SymId z) {
  Softmax softmax;
  softmax.denominator = z;
  const RowTerms terms = partition(arena, numerator.exponent);
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<ReducePiece> parts,
                             parts_of_divisor(arena, z, !terms.of_row.empty(), softmax.needs_maximum));
  for (const ReducePiece& piece : parts) {
    if (arena.is_constant(piece.body) && piece.size == 1 && arena.f32_value(piece.body) > 0 && terms.of_row.empty()) {
      add_sink(softmax, arena.f32(std::log(arena.f32_value(piece.body))), 1, -1);
      continue;
    }
    const Product body = as_product(arena, piece.body);
    if (!body.over.empty() || !body.times.empty()) {
      return refuse<Reason::kOtherPartsInSum>();
    }
    append(softmax.apart, body.apart);
    FLASHLIFT_RETURN_IF_ERROR(piece.atom == kKeyAtom ? read_keys(arena, numerator, terms, body, softmax)
                                                     : read_sink(arena, piece, body, terms.of_row, softmax));
  }
  if (softmax.score == kNoSym) {
    return refuse<Reason::kNoKeySum>();
  }
  softmax.subtracted = terms.of_row;
  if (subtracts_own_maximum(arena, softmax)) {
    softmax.maximum = terms.of_row[0].term;
  } else if (std::any_of(terms.of_row.begin(), terms.of_row.end(),
                         [&](const SignedTerm& shift) { return may_be_no_number(arena, shift.term, softmax); })) {
    return refuse<Reason::kShiftNoNumber>();
  }
  return softmax;
}

}  // namespace flashlift::stablehlo
