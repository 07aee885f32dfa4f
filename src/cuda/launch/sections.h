// In which order blocks work on heads.
#pragma once

#include "cuda/emit/forward_config.h"
#include "cuda/launch/driver.h"

namespace flashlift::cuda {

// Key-value heads with what comes with each of them.
struct HeadGroups {
  int64_t groups;  // batch * kv_heads
  int64_t bytes;   // that all blocks of one read
  int64_t blocks;  // of one
};

// How many of them to schedule together, in sections of equal size, since a small last section would leave
// multiprocessors idle at the end. Heads that share keys stay together. Sections begin with their longest tiles, so
// that they end together, and with what comes from memory all at once: no more than fits the L2 cache, and under a mask
// only as many as occupy all multiprocessors once. Where no tile is longer than another, one head after the other is
// better. (Neither was seen for narrow heads: docs/lessons.)
int64_t groups_per_section(const HeadGroups& heads, const ForwardConfig& config, const Device& device);

}  // namespace flashlift::cuda
