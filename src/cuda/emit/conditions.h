// The conditions of a mask_mod: a key is kept if all of them hold.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/program.h"

namespace flashlift::cuda {

std::vector<ValueId> conditions(const Program& mask_mod);

// The conditions that read captured tensors; none if all of them do.
std::vector<ValueId> loading_conditions(const Program& mask_mod);
// The mask_mod under the assumption that those conditions hold.
Program without_loading_conditions(const Program& mask_mod);

// A condition on the queries that see a key. kFirst, kLast: no such query is before, or after, kv * key + constant.
// kAny: some query sees the key only if kv * key + constant is at most 0.
struct QueryBound {
  enum class Kind : uint8_t { kFirst, kLast, kAny } kind = Kind::kAny;
  int kv = 0;
  int64_t constant = 0;
};
// All conditions of the mask_mod, if they are comparisons of positions.
std::optional<std::vector<QueryBound>> query_bounds(const Program& mask_mod);

// Is a key's last query later than the one of an earlier key, as in a sliding window, and unlike in a document or under
// a causal mask? The mask_mod or a score_mod of -inf may hide the others. Decided from some neighbouring tiles of a
// long sequence, as if conditions of the mask_mod that read captured tensors held everywhere. A score_mod that reads
// captured tensors counts as hiding nothing.
bool is_sliding(const Problem& problem);

// Is a key's first query later than the one of an earlier key, as under a causal mask and in a sliding window? Decided
// as in is_sliding().
bool begins_later(const Problem& problem);

}  // namespace flashlift::cuda
