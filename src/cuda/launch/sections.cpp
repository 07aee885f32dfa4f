#include "cuda/launch/sections.h"

#include <algorithm>

#include "support/rounding.h"

namespace flashlift::cuda {

int64_t groups_per_section(const HeadGroups& heads, const ForwardConfig& config, const Device& device) {
  constexpr int kNarrow = 64;
  const bool narrow = std::max(config.head_dim, config.value_dim) <= kNarrow;
  if (!config.has_mask_mod && !narrow) {
    return 1;
  }
  int64_t together = device.l2_bytes / std::max<int64_t>(heads.bytes, 1);
  if (!narrow) {
    together = std::min<int64_t>(together, device.multiprocessors / std::max<int64_t>(heads.blocks, 1));
  }
  const int64_t sections = divide_up(heads.groups, std::max<int64_t>(together, 1));
  return divide_up(heads.groups, std::max<int64_t>(sections, 1));
}

}  // namespace flashlift::cuda
