// The order in which blocks process heads.
#pragma once

#include "cuda/emit/forward_config.h"
#include "cuda/launch/driver.h"

namespace flashlift::cuda {

// Key-value heads, and the data and blocks of each.
struct HeadGroups {
  int64_t groups;  // batch * kv_heads
  int64_t bytes;   // read by all blocks of one head
  int64_t blocks;  // of one head
};

// The number of heads to schedule together, in sections of equal size: a small last section would leave multiprocessors
// idle at the end. Heads that share keys stay together. The longest tiles of a section come first, so that they end
// together. Its data is read from memory all at once: therefore a section has no more heads than fit into the L2 cache,
// and under a mask only as many as occupy all multiprocessors once. If all tiles have the same length, one head after
// the other is better. (Neither effect was seen for narrow heads: docs/lessons.)
int64_t groups_per_section(const HeadGroups& heads, const ForwardConfig& config, const Device& device);

}  // namespace flashlift::cuda
