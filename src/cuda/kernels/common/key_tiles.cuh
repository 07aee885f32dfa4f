// Shared code of backward kernels whose blocks process tiles of keys: the keys of a block, and the queries that see
// them.
#pragma once

#include "cuda/kernels/common/rows.cuh"
#include "cuda/kernels/common/scheduler.cuh"

namespace flashlift::cuda {

// Which keys a block has.
struct KeyRows {
  int b;
  int kv_head;
  int first;
};
struct KeyTile : KeyRows {
  int last;
  int index;              // among the head's
  bool mirrored = false;  // do the head's last keys come first
};

// The queries of a section of heads fit the L2 cache together.
struct KeySection {
  int first_head, heads;  // key-value heads, of all batches
  int within;             // the index, counted from the section's first one
};
__device__ __forceinline__ KeySection key_section(const ForwardParams& params, const BackwardParams& backward,
                                                  int index) {
  const int section_heads = params.heads_per_section / params.group;
  const int section = index / (section_heads * backward.kv_tiles);
  const int within = index - section * section_heads * backward.kv_tiles;
  const int first_head = section * section_heads;
  return {first_head, min(section_heads, params.batch * params.kv_heads - first_head), within};
}

// Tiles of kKeys keys: one of a head among those of all batches.
template <int kKeys>
__device__ __forceinline__ KeyTile key_tile_of(const ForwardParams& params, int head, int tile) {
  const int first_key = tile * kKeys;
  return {{head / params.kv_heads, head % params.kv_heads, first_key}, min(first_key + kKeys, params.kv_len) - 1, tile};
}

// The heads of a section take turns. Early keys come first, because most queries see them under a causal mask, but last in
// the first `mirrored_heads` heads.
template <int kKeys>
__device__ __forceinline__ KeyTile key_tile(const ForwardParams& params, const BackwardParams& backward, int index,
                                            int mirrored_heads = 0) {
  const KeySection section = key_section(params, backward, index);
  const int place = section.within / section.heads;
  const int head = section.first_head + section.within - place * section.heads;
  const bool mirrored = head < mirrored_heads;
  KeyTile keys = key_tile_of<kKeys>(params, head, mirrored ? backward.kv_tiles - 1 - place : place);
  keys.mirrored = mirrored;
  return keys;
}

__device__ __forceinline__ int key_tile_count(const ForwardParams& params, const BackwardParams& backward) {
  return backward.kv_tiles * params.batch * params.kv_heads;
}

// Classifies the scores of some queries and keys; `full`: whether they fill a whole tile.
__device__ __forceinline__ TileKind classify_scores(const ForwardParams& params, int b, int h, int q_first, int q_last,
                                                    int kv_first, int kv_last, bool full) {
#if FL_SCORE_MASKS
  if (score_tile(b, h, h, q_first, q_last, kv_first, kv_last, params).masks) {
    return kTileSkipped;
  }
#endif
#if FL_HAS_MASK_MOD
#if FL_HAS_PLAIN_MASK
  // First what reads no memory: before a causal mask's diagonal no lane has anything else to ask, and no load is waited
  // for.
  if ((plain_mask_interval(b, h, h, q_first, q_last, kv_first, kv_last, params) & kMayBeTrue) == 0) {
    return kTileSkipped;
  }
#endif
  const int possible = mask_interval(b, h, h, q_first, q_last, kv_first, kv_last, params);
  if ((possible & kMayBeTrue) == 0) {
    return kTileSkipped;
  }
  full = full && (possible & kMayBeFalse) == 0;
#if FL_HAS_PLAIN_MASK
  if (!full && (possible & kLoadsHold) != 0) {
    return kTilePlain;
  }
#endif
#endif
  return full ? kTileFull : kTilePartial;
}

}  // namespace flashlift::cuda
