// What the values of a program depend on.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "flashlift/program.h"

namespace flashlift::cuda {

// Constant offsets in sums with kv, up to which a sum cannot leave i32 (lengths are below 2^30).
inline constexpr int64_t kSmallOffset = int64_t{1} << 29;

// What each value of a program depends on, and how i32 values grow with q and kv where that is constant.
struct Motion {
  explicit Motion(const Program& program);

  std::vector<bool> score, kv, q, h;
  std::vector<std::optional<int>> kv_step, q_step;
};

// q * query + kv * key + constant, of i32 values that cannot leave i32 on the way (lengths are below 2^30).
struct Linear {
  int q = 0;
  int kv = 0;
  int64_t constant = 0;

  // Nothing where it may leave i32, or grows by more than one.
  std::optional<Linear> plus(const Linear& other, int sign) const;
};

// Of each i32 value that is one; nothing for others.
std::vector<std::optional<Linear>> linear_values(const Program& program);

// A load of one float for each key, the same for all heads: a mask of 0 and -inf, as a rule. (Of biases that heads have
// for themselves nothing is to be known, and to ask costs up to a fourth of the time: docs/lessons.)
bool is_mask_load(const Program& program, const Motion& motion, const Node& node);

// Does it read nothing that changes with the key but masks, and do nothing with them but add them? Where they are zeros
// it then is a program without loads.
bool adds_masks_only(const Program& program);

}  // namespace flashlift::cuda
