// Selects a block's next query tile, and the key tiles that this query tile visits.
#pragma once

#include "cuda/kernels/common/forward_params.h"
#include "cuda/kernels/common/ptx.cuh"
#include "program.cuh"

namespace flashlift::cuda {

// Whether tiles may be skipped.
#define FL_FINDS_VISITS (FL_HAS_MASK_MOD || FL_SCORE_MASKS)

struct QueryTile {
  int b;
  int h, last_h;
  int row, last_row;                // queries
  int first_kv_tile, end_kv_tile;  // the key tiles that the block considers: nth_kv_tile()
};

__device__ __forceinline__ int kv_tile_count(const ForwardParams& params) {
  return (params.kv_len + FL_BLOCK_N - 1) / FL_BLOCK_N;
}

// For FL_BLOCK_M queries and all keys.
__device__ __forceinline__ QueryTile tile_at(const ForwardParams& params, int b, int h, int row) {
  return {b, h, h, row, min(row + FL_BLOCK_M, params.q_len) - 1, 0, kv_tile_count(params)};
}

// The nth key tile that the block considers. Blocks that share the keys of a unit (FL_SPLIT) take turns at its key tiles:
// of a cache with room for more keys than a sequence has, each of them gets as many that are in use.
__device__ __forceinline__ int nth_kv_tile(const ForwardParams& params, const QueryTile& tile, int n) {
  return tile.first_kv_tile + (FL_SPLIT ? n * params.splits : n);
}

// How many of them come before a key tile.
__device__ __forceinline__ int kv_tiles_before(const ForwardParams& params, const QueryTile& tile, int kv_tile) {
  const int tiles = kv_tile - tile.first_kv_tile;
  return FL_SPLIT ? max(tiles + params.splits - 1, 0) / params.splits : tiles;
}

// Tiles are numbered by sections of heads whose keys and values fit the L2 cache together. Within a section, late
// queries come first: under a causal mask they have the most key tiles, and starting them first balances the blocks at
// the end.
__device__ __forceinline__ QueryTile query_tile(const ForwardParams& params, int index) {
  const int section_tiles = params.heads_per_section * params.q_tiles;
  const int section = index / section_tiles;
  const int within = index - section * section_tiles;
  const int first_head = section * params.heads_per_section;
  const int heads = min(params.heads_per_section, params.batch * params.q_heads - first_head);
  const int tile = within / heads;
  const int head = first_head + within - tile * heads;
  const int b = head / params.q_heads;
  return tile_at(params, b, head - b * params.q_heads, (params.q_tiles - 1 - tile) * FL_BLOCK_M);
}

// kTilePlain: partial as well, but plain_mask_mod suffices as the mask (classify_scores only).
enum TileKind { kTileSkipped = 0, kTilePartial = 1, kTileFull = 2, kTilePlain = 3 };

__device__ __forceinline__ bool is_partial(TileKind kind) { return kind == kTilePartial || kind == kTilePlain; }

struct TileClass {
  TileKind kind;
  bool zeros = false;  // what the score_mod adds as a mask is 0
};

__device__ __forceinline__ TileClass classify_tile(const ForwardParams& params, const QueryTile& tile, int kv_tile) {
  const int kv = kv_tile * FL_BLOCK_N;
  if (kv_tile >= tile.end_kv_tile) {
    return {kTileSkipped};
  }
  const int kv_last = min(kv + FL_BLOCK_N, params.kv_len) - 1;
  bool full = kv_last - kv == FL_BLOCK_N - 1;
  bool zeros = false;
#if FL_SCORE_MASKS
  const ScoreTile score = score_tile(tile.b, tile.h, tile.last_h, tile.row, tile.last_row, kv, kv_last, params);
  if (score.masks) {
    return {kTileSkipped};
  }
  zeros = score.zeros;
#endif
#if FL_HAS_MASK_MOD
  const int possible =
      mask_interval(tile.b, tile.h, tile.last_h, tile.row, tile.last_row, kv, kv_last, params);
  if ((possible & kMayBeTrue) == 0) {
    return {kTileSkipped};
  }
  full = full && (possible & kMayBeFalse) == 0;
#endif
  return {full ? kTileFull : kTilePartial, zeros};
}

__device__ __forceinline__ TileKind tile_kind(const ForwardParams& params, const QueryTile& tile, int kv_tile) {
  return classify_tile(params, tile, kv_tile).kind;
}

// Lane c stores which of the tiles 32c to 32c + 31 of those that the block considers are visited: one pass over the mask
// covers up to 1024 tiles. For more tiles the mask is evaluated again, which costs little beside so many keys.
constexpr int kRememberedTiles = 1024;

struct Visits {
  int partial = 0;  // counts
  int full = 0;
  u32 partial_bits = 0;
  u32 full_bits = 0;
  u32 zeros_bits = 0;  // of either
};

// A warp classifies 32 key tiles at a time.
__device__ __forceinline__ Visits find_visits(const ForwardParams& params, const QueryTile& tile) {
  const int kv_tiles = kv_tiles_before(params, tile, tile.end_kv_tile);
  Visits visits;
#if FL_FINDS_VISITS
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int first = 0; first < kv_tiles; first += 32) {
    const TileClass found = classify_tile(params, tile, nth_kv_tile(params, tile, first + lane));
    const u32 partial = __ballot_sync(0xffffffff, found.kind == kTilePartial);
    const u32 full = __ballot_sync(0xffffffff, found.kind == kTileFull);
#if FL_SCORE_ZEROS
    const u32 zeros = __ballot_sync(0xffffffff, found.zeros);
    visits.zeros_bits = lane == first / 32 ? zeros : visits.zeros_bits;
#endif
    visits.partial += __popc(partial);
    visits.full += __popc(full);
    visits.partial_bits = lane == first / 32 ? partial : visits.partial_bits;
    visits.full_bits = lane == first / 32 ? full : visits.full_bits;
  }
#else
  visits.full = kv_tiles_before(params, tile, min(params.kv_len / FL_BLOCK_N, tile.end_kv_tile));
  visits.partial = kv_tiles - visits.full;
#endif
  return visits;
}

// The visited tiles one after the other, partial ones first: the consumers then need no mask code after them.
class VisitIterator {
 public:
  __device__ __forceinline__ VisitIterator(const ForwardParams& params, const QueryTile& tile, const Visits& visits)
      : params_(params), tile_(tile), visits_(visits), partial_left_(visits.partial), full_left_(visits.full) {
    restart();
  }

  // The next tile, or -1. Called by whole warps. kMayEnd: whether there may be no next tile; a caller that knows that
  // there is one saves a register.
  template <bool kMayEnd = true>
  __device__ __forceinline__ int next() {
#if FL_FINDS_VISITS
    if (kMayEnd && partial_left_ == 0 && full_left_ == 0) {
      return -1;
    }
    while (hits_ == 0) {
      first_ -= 32;
      const bool partial = partial_left_ > 0;
      if (kv_tiles_before(params_, tile_, tile_.end_kv_tile) <= kRememberedTiles) {
        hits_ = __shfl_sync(0xffffffff, partial ? visits_.partial_bits : visits_.full_bits, first_ / 32);
#if FL_SCORE_ZEROS
        zeros_ = __shfl_sync(0xffffffff, visits_.zeros_bits, first_ / 32);
#endif
      } else {
        const TileClass found =
            classify_tile(params_, tile_, nth_kv_tile(params_, tile_, first_ + static_cast<int>(threadIdx.x % 32)));
        hits_ = __ballot_sync(0xffffffff, found.kind == (partial ? kTilePartial : kTileFull));
#if FL_SCORE_ZEROS
        zeros_ = __ballot_sync(0xffffffff, found.zeros);
#endif
      }
    }
    const int bit = 31 - __clz(hits_);
    hits_ ^= 1u << bit;
    const int kv_tile = nth_kv_tile(params_, tile_, first_ + bit);
    adds_zeros_ = FL_SCORE_ZEROS && (zeros_ >> bit & 1) != 0;
    if (partial_left_ > 0) {
      if (--partial_left_ == 0) {
        restart();
      }
    } else if (kMayEnd) {
      --full_left_;
    }
    return kv_tile;
#else
    return nth_kv_tile(params_, tile_, --first_);
#endif
  }

  // Whether the mask that the score_mod adds is 0 in the latest tile.
  __device__ __forceinline__ bool adds_zeros() const { return adds_zeros_; }

 private:
  // Latest keys first: under a causal mask those are the partial ones.
  __device__ __forceinline__ void restart() {
    const int kv_tiles = kv_tiles_before(params_, tile_, tile_.end_kv_tile);
    hits_ = 0;
    first_ = FL_FINDS_VISITS ? (kv_tiles + 31) / 32 * 32 : kv_tiles;
  }

  const ForwardParams& params_;
  const QueryTile& tile_;
  const Visits& visits_;
  int partial_left_;
  int full_left_;
  int first_;
  u32 hits_;
  u32 zeros_ = 0;
  bool adds_zeros_ = false;
};

}  // namespace flashlift::cuda
