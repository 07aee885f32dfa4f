// The order in which the key tiles of a head add to its d_q, if every key tile sees all queries (FL_RINGS).
//
// If all blocks began at the last queries, each would wait for the one before at every tile. Therefore,
// BackwardParams::ring_tiles key tiles form a ring: they begin one or two steps apart, the last one at the last
// queries, which are step 0, and the first one furthest on. A key tile iterates from where it begins to the first
// queries, and then from the last queries on. So it comes to a step some time after the key tile before it, and
// seldom waits. Query heads that share the keys come one after the other.
//
// The order at a step: first those that come there before they continue at the last queries, in the order of their
// numbers, and then the others. All key tiles of a ring add before those of the next ring.
//
// The key tiles of a ring wait for each other in a circle, so that blocks must process all of them at the same time.
// Usually they do, since a ring has fewer key tiles than there are multiprocessors. But other kernels may occupy
// multiprocessors for as long as they like. So the key tiles of a ring decide once, before the first of them continues at
// the last queries, whether they stay together: if blocks take all of them soon. Otherwise they come apart: wherever a key
// tile continues at the last queries, its block leaves it, and resumes another one.
//
// The places where it continues divide a key tile's steps, of all heads, into parts. A part waits only for earlier parts of
// any key tile of the ring, and for the same part of those with lower numbers. Blocks resume in that order (all key tiles
// of a ring must have been taken), before they take new ones, and when their own are complete. So even a single block
// finishes. A block that resumes a key tile computes it from its beginning, but adds only the next part to d_q. So all
// sums have the same bits, whether a ring stays together or not.
#pragma once

#include "cuda/kernels/common/key_ring.h"
#include "cuda/kernels/common/key_tiles.cuh"
#include "cuda/kernels/sm90/ptx.cuh"

namespace flashlift::cuda {

// (A constant takes no register.)
__device__ __forceinline__ int ring_distance(const BackwardParams& backward) {
  return FL_BLOCK_N > 64 ? backward.ring_distance : kRingDistance;
}

// As key_tile(), but the heads of a section take turns with whole rings.
struct RingTile : KeyTile {
  KeyRing ring;
  int ring_end;  // the index behind those of its ring
};
template <int kKeys>
__device__ __forceinline__ RingTile ring_tile(const ForwardParams& params, const BackwardParams& backward, int index) {
  const KeySection section = key_section(params, backward, index);
  const RingIndex at = ring_index(section.within, section.heads, backward.kv_tiles, backward.ring_tiles, ring_distance(backward));
  return {key_tile_of<kKeys>(params, section.first_head + at.head, at.ring.first + at.ring.place), at.ring,
          index - section.within + at.end};
}

// RowTiles::left_keys of the last key tile of a ring, in the array's second half.
enum RingDecision { kNotDecided, kTogether, kApart };

// A key tile that a block has left, and how many parts have been added then. None: no parts.
struct LeftKeys {
  int index;
  int parts;
};

// One thread: notes that its block has left a key tile.
__device__ __forceinline__ void leave_keys(const RowTiles& tiles, LeftKeys left) {
  atomicExch(tiles.left_keys + left.index, left.parts);
  __threadfence();
  atomicAdd(tiles.next_block + kLeftKeys, 1);
}

// One thread: a key tile to resume. Of the first ring that has one, and that has been taken as a whole, the first key tile
// of those with the fewest parts.
template <int kKeys>
__device__ __forceinline__ LeftKeys resume_keys(const ForwardParams& params, const BackwardParams& backward,
                                                const RowTiles& tiles) {
  if (load_relaxed(tiles.next_block + kLeftKeys) == 0) {
    return {};
  }
  __threadfence();  // as in leave_keys(): what was noted before is seen below
  const int taken = min(load_relaxed(tiles.next_block), key_tile_count(params, backward));
#pragma unroll 1
  while (true) {
    LeftKeys first{};
    int end = taken;
#pragma unroll 1
    for (int index = 0; index < end; ++index) {
      const int parts = load_relaxed(tiles.left_keys + index);
      if (parts > 0 && (first.parts == 0 || parts < first.parts)) {
        first = {index, parts};
        end = ring_tile<kKeys>(params, backward, index).ring_end;
        if (end > taken) {
          return {};
        }
      }
    }
    if (first.parts == 0) {
      return {};
    }
    if (atomicCAS(tiles.left_keys + first.index, first.parts, 0) == first.parts) {
      atomicSub(tiles.next_block + kLeftKeys, 1);
      return first;
    }
  }
}

}  // namespace flashlift::cuda
