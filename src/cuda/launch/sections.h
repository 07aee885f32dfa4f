// The order in which blocks process heads.
#pragma once

#include "cuda/emit/backward_config.h"
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
// and only as many as have one to four blocks for each multiprocessor, by the kernel. If all tiles of wide heads have
// the same length, one head after the other is better. (Measured: docs/lessons/cuda_forward.md.)
int64_t groups_per_section(const HeadGroups& heads, const ForwardConfig& config, const Device& device);

// The order in which blocks process the key tiles of the fused backward kernel if nothing is masked
// (kernels/sm90/key_rings.cuh).
struct Rings {
  int key_tiles;  // of a ring. 1: there are no rings
  int heads;      // key-value heads that take turns
};

// Where rings are faster. `heads`: batch * kv_heads, of `key_tiles` each; a key tile visits `query_tiles` of each
// query head that shares it. Rings of equal size must occupy all multiprocessors but a few, and at about four heads
// at a time, whose queries and sums fit into the L2 cache; of narrow heads, only if blocks have few key tiles each.
// (Measured on an H100 and an H200: docs/lessons/cuda_backward.md.)
Rings choose_rings(int64_t heads, int64_t query_tiles, int64_t key_tiles, const Sm90BackwardKernel& kernel,
                   int multiprocessors);

}  // namespace flashlift::cuda
