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
  int distance;   // query tiles between the starts of two of its key tiles
};

// Where rings are faster. `heads`: batch * kv_heads, of `key_tiles` each; a key tile visits `query_tiles` of each
// query head that shares it. Rings of equal size must occupy all multiprocessors but a few, and at about four heads
// at a time, whose queries and sums fit into the L2 cache; of narrow heads, only if blocks have few key tiles each, or
// heads are long. (Measured on an H100 and an H200: docs/lessons/cuda_backward.md.)
Rings choose_rings(int64_t heads, int64_t query_tiles, int64_t key_tiles, const Sm90BackwardKernel& kernel,
                   int multiprocessors);

// The number of key-value heads whose blocks alternate in the portable fused backward kernel, so that few blocks of one
// head wait for each other. Without a mask, fewer long heads are faster: their queries and sums fit the L2 cache.
// (Measured on an H200: docs/lessons.)
int alternating_heads(const Sm80FusedKernel& kernel, int q_len);

// The number of key-value heads whose blocks alternate in Hopper's, if there are no rings. With more heads, fewer
// blocks of one head wait for each other, but the L2 cache should hold the d_q that they add to: where it does not,
// fewer heads draw less power, which a GPU that its power limits turns into speed. (Of a window, few rows of d_q are in
// use at a time. Query heads that take turns are at the same rows, so that one of them counts.) Under a mask, short
// heads should have more key tiles than there are blocks, so that those of one head do not all begin together; with
// tiles of 128 queries, of which short heads have few, that holds without a mask, too. Where blocks do not wait, few
// heads are best, but under a mask more of short ones, whose tiles then differ less in length. By roles, where two
// blocks share a key tile and no rings are formed, those are best whose key tiles run all at once. (Measured on an H100
// and an H200: docs/lessons.)
int alternating_heads(const Sm90BackwardKernel& kernel, int group, int q_len, int kv_len, const Device& device);

// The order in which blocks of that kernel process key tiles, if there are no rings.
struct KeyOrder {
  int heads;     // key-value heads that alternate: a section
  int mirrored;  // BackwardParams::mirrored_heads: those of all sections but the last
};

// `heads`: batch * kv_heads. Blocks of a mirrored section seldom wait for each other. It has as many heads as have
// queries, d_out and sums that fit the L2 cache together. The last section is not mirrored, so that its longest key
// tiles come first. (Measured on an H200: docs/lessons/cuda_backward.md.)
KeyOrder choose_key_order(const Sm90BackwardKernel& kernel, int64_t heads, int group, int q_len, int kv_len,
                          const Device& device);

}  // namespace flashlift::cuda
