// Dependences of a program's values on coordinates.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "flashlift/program.h"

namespace flashlift::cuda {

// With constant offsets up to this one, a sum with kv cannot overflow i32 (lengths are below 2^30).
inline constexpr int64_t kSmallOffset = int64_t{1} << 29;

// The coordinates that each value of a program depends on, and the amount by which i32 values grow with q and kv, if
// that is constant.
struct Motion {
  explicit Motion(const Program& program);

  std::vector<bool> score, kv, q, h;
  std::vector<std::optional<int>> kv_step, q_step;
};

// q * query + kv * key + constant, for i32 values that cannot overflow (lengths are below 2^30).
struct Linear {
  int q = 0;
  int kv = 0;
  int64_t constant = 0;

  // Nothing if the sum may overflow i32, or grows by more than one.
  std::optional<Linear> plus(const Linear& other, int sign) const;
};

// The linear form of each i32 value, if it has one.
std::vector<std::optional<Linear>> linear_values(const Program& program);

// A load of one float for each key, which is the same for all heads: usually a mask of 0 and -inf. (Biases of single
// heads usually have no useful bounds, and testing them costs up to a fourth of the time: docs/lessons.)
bool is_mask_load(const Program& program, const Motion& motion, const Node& node);

// Whether masks are the only values of the program that change with the key, and are only added. If they are all zeros,
// the program is then equivalent to one without loads.
bool adds_masks_only(const Program& program);

}  // namespace flashlift::cuda
