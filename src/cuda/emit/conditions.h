// What a mask_mod asks, as conditions that all must hold.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "flashlift/program.h"

namespace flashlift::cuda {

std::vector<ValueId> conditions(const Program& mask_mod);

// Those that read captured tensors; none where all of them do.
std::vector<ValueId> loading_conditions(const Program& mask_mod);
// The mask_mod where those hold.
Program without_loading_conditions(const Program& mask_mod);

// What a condition says of the queries that see a key. kFirst, kLast: none comes before, or behind, kv * key +
// constant. kAny: there are some only if that is at most 0.
struct QueryBound {
  enum class Kind : uint8_t { kFirst, kLast, kAny } kind = Kind::kAny;
  int kv = 0;
  int64_t constant = 0;
};
// All that the mask_mod asks, if comparisons of positions say it.
std::optional<std::vector<QueryBound>> query_bounds(const Program& mask_mod);

}  // namespace flashlift::cuda
