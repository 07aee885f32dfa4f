// Which query tile a block works on next, and which key tiles that one visits.
#pragma once

#include "forward_params.h"
#include "program.cuh"
#include "ptx.cuh"

namespace flashlift::cuda {

struct QueryTile {
  int b;
  int h;
  int row;  // first query
};

// Tiles are numbered so that heads whose keys and values fit the L2 cache together are neighbours, and that within
// such a section the late queries come first: under a causal mask those are the long tiles, and starting them first
// evens out the end.
__device__ __forceinline__ QueryTile query_tile(const ForwardParams& params, int index) {
  const int section_tiles = params.heads_per_section * params.q_tiles;
  const int section = index / section_tiles;
  const int within = index - section * section_tiles;
  const int first_head = section * params.heads_per_section;
  const int heads = min(params.heads_per_section, params.batch * params.q_heads - first_head);
  const int tile = within / heads;
  const int head = first_head + within - tile * heads;
  QueryTile result;
  result.b = head / params.q_heads;
  result.h = head - result.b * params.q_heads;
  result.row = (params.q_tiles - 1 - tile) * FL_BLOCK_M;
  return result;
}

enum TileKind { kTileSkipped = 0, kTilePartial = 1, kTileFull = 2 };

__device__ __forceinline__ TileKind tile_kind(const ForwardParams& params, const QueryTile& tile, int kv_tile) {
  const int kv = kv_tile * FL_BLOCK_N;
  if (kv >= params.kv_len) {
    return kTileSkipped;
  }
  const int kv_last = min(kv + FL_BLOCK_N, params.kv_len) - 1;
  bool full = kv_last - kv == FL_BLOCK_N - 1;
#if FL_HAS_MASK_MOD
  const int q_last = min(tile.row + FL_BLOCK_M, params.q_len) - 1;
  const int possible = mask_interval(tile.b, tile.h, tile.row, q_last, kv, kv_last, params);
  if ((possible & kMayBeTrue) == 0) {
    return kTileSkipped;
  }
  full = full && (possible & kMayBeFalse) == 0;
#endif
  return full ? kTileFull : kTilePartial;
}

struct VisitCounts {
  int partial;
  int full;
};

// A warp classifies 32 key tiles at a time.
__device__ __forceinline__ VisitCounts count_visits(const ForwardParams& params, const QueryTile& tile) {
  const int kv_tiles = (params.kv_len + FL_BLOCK_N - 1) / FL_BLOCK_N;
#if FL_HAS_MASK_MOD
  const int lane = threadIdx.x % 32;
  VisitCounts counts = {0, 0};
  for (int first = 0; first < kv_tiles; first += 32) {
    const TileKind kind = tile_kind(params, tile, first + lane);
    counts.partial += __popc(__ballot_sync(0xffffffff, kind == kTilePartial));
    counts.full += __popc(__ballot_sync(0xffffffff, kind == kTileFull));
  }
  return counts;
#else
  const int full = params.kv_len / FL_BLOCK_N;
  return {kv_tiles - full, full};
#endif
}

// The visited tiles one after the other, partial ones first: the consumers then need no mask code after them. Two
// passes over the mask are cheaper than remembering the first one's answers for any number of keys.
class VisitIterator {
 public:
  __device__ __forceinline__ VisitIterator(const ForwardParams& params, const QueryTile& tile, VisitCounts counts)
      : params_(params), tile_(tile), partial_left_(counts.partial), full_left_(counts.full) {
    restart();
  }

  // The next tile, or -1. Called by whole warps.
  __device__ __forceinline__ int next() {
#if FL_HAS_MASK_MOD
    if (partial_left_ == 0 && full_left_ == 0) {
      return -1;
    }
    while (hits_ == 0) {
      first_ -= 32;
      const TileKind wanted = partial_left_ > 0 ? kTilePartial : kTileFull;
      hits_ = __ballot_sync(0xffffffff, tile_kind(params_, tile_, first_ + static_cast<int>(threadIdx.x % 32)) == wanted);
    }
    const int bit = 31 - __clz(hits_);
    hits_ ^= 1u << bit;
    const int kv_tile = first_ + bit;
    if (partial_left_ > 0) {
      if (--partial_left_ == 0) {
        restart();
      }
    } else {
      --full_left_;
    }
    return kv_tile;
#else
    return --first_;
#endif
  }

 private:
  // Latest keys first: under a causal mask those are the partial ones.
  __device__ __forceinline__ void restart() {
    const int kv_tiles = (params_.kv_len + FL_BLOCK_N - 1) / FL_BLOCK_N;
    hits_ = 0;
    first_ = FL_HAS_MASK_MOD ? (kv_tiles + 31) / 32 * 32 : kv_tiles;
  }

  const ForwardParams& params_;
  const QueryTile& tile_;
  int partial_left_;
  int full_left_;
  int first_;
  u32 hits_;
};

}  // namespace flashlift::cuda
