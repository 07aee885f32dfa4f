// The order in which the key tiles of a head add to its d_q, if every key tile sees all queries (FL_RINGS).
//
// If all blocks began at the last queries, each would wait for the one before at every tile. Therefore,
// BackwardParams::ring_tiles key tiles form a ring: they begin ring_distance() steps apart, the last one at the last
// queries, which are step 0, and the first one furthest on. A key tile iterates from where it begins to the first
// queries, and then from the last queries on. So it comes to a step some time after the key tile before it, and
// seldom waits. Query heads that share the keys come one after the other: first all of them from where the key tile
// begins, and then all of them from the last queries on.
//
// The order at a step: first those that come there before they continue at the last queries, in the order of their
// numbers, and then the others. All key tiles of a ring add before those of the next ring.
//
// The key tiles of a ring wait for each other in a circle, so that blocks must process all of them at the same time.
// Usually they do, since a ring has fewer key tiles than there are multiprocessors. But other kernels may occupy
// multiprocessors for as long as they like. Only behind the last queries does a block wait for key tiles that are
// taken after its own. Before it continues there, it therefore waits until blocks have taken all key tiles of the
// ring, but not for long. Otherwise it leaves its key tile, whose parts of d_q until then are added already, and
// takes another one. A block that resumes a key tile computes it from its beginning, but adds nothing to d_q before
// it continues at the last queries. Blocks resume in the order of the key tiles, before they take new ones, and when
// their own are complete. So even a single block finishes, and the sums have the same bits.
#pragma once

#include "cuda/kernels/common/key_ring.h"
#include "cuda/kernels/common/key_tiles.cuh"
#include "cuda/kernels/sm90/ptx.cuh"

namespace flashlift::cuda {

using BlockRing = KeyRing<ring_distance(FL_BLOCK_N)>;

// As key_tile(), but the heads of a section take turns with whole rings.
struct RingTile : KeyTile {
  BlockRing ring;
  int ring_end;  // the index behind those of its ring
};
template <int kKeys>
__device__ __forceinline__ RingTile ring_tile(const ForwardParams& params, const BackwardParams& backward, int index) {
  const KeySection section = key_section(params, backward, index);
  const auto at = ring_index<ring_distance(FL_BLOCK_N)>(section.within, section.heads, backward.kv_tiles, backward.ring_tiles);
  return {key_tile_of<kKeys>(params, section.first_head + at.head, at.ring.first + at.ring.place), at.ring,
          index - section.within + at.end};
}

// What RowTiles::left_keys has of a key tile.
enum LeftKeys { kNotLeft, kLeftByBlock, kResumed };

// One thread: notes that its block has left the key tile of an index.
__device__ __forceinline__ void leave_keys(const RowTiles& tiles, int index) {
  atomicExch(tiles.left_keys + index, static_cast<int>(kLeftByBlock));
  __threadfence();
  atomicAdd(tiles.next_block + kLeftKeys, 1);
}

// One thread: the first key tile to resume, of a ring of which all have been taken, or -1.
template <int kKeys>
__device__ __forceinline__ int resume_keys(const ForwardParams& params, const BackwardParams& backward,
                                           const RowTiles& tiles) {
  if (load_relaxed(tiles.next_block + kLeftKeys) == 0) {
    return -1;
  }
  __threadfence();  // as in leave_keys(): what was noted before is seen below
  const int taken = min(load_relaxed(tiles.next_block), key_tile_count(params, backward));
#pragma unroll 1
  for (int index = 0; index < taken; ++index) {
    if (load_relaxed(tiles.left_keys + index) == kLeftByBlock &&
        ring_tile<kKeys>(params, backward, index).ring_end <= taken &&
        atomicCAS(tiles.left_keys + index, kLeftByBlock, kResumed) == kLeftByBlock) {
      atomicSub(tiles.next_block + kLeftKeys, 1);
      return index;
    }
  }
  return -1;
}

}  // namespace flashlift::cuda
