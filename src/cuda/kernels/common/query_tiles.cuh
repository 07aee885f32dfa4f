// The query tiles that a tile of keys is seen by. FL_BLOCK_N is a number of queries here.
#pragma once

#include "cuda/kernels/common/scheduler.cuh"

namespace flashlift::cuda {

struct KeyTile {
  int b;
  int kv_head;
  int first, last;
};

__device__ __forceinline__ TileKind query_tile_kind(const ForwardParams& params, const KeyTile& keys, int h, int tile) {
  const int q_first = tile * FL_BLOCK_N;
  if (q_first >= params.q_len) {
    return kTileSkipped;
  }
  const int q_last = min(q_first + FL_BLOCK_N, params.q_len) - 1;
  bool full = q_last - q_first == FL_BLOCK_N - 1;
#if FL_SCORE_MASKS
  if (score_tile(keys.b, h, h, q_first, q_last, keys.first, keys.last, params).masks) {
    return kTileSkipped;
  }
#endif
#if FL_HAS_MASK_MOD
  const int possible = mask_interval(keys.b, h, h, q_first, q_last, keys.first, keys.last, params);
  if ((possible & kMayBeTrue) == 0) {
    return kTileSkipped;
  }
  full = full && (possible & kMayBeFalse) == 0;
#endif
  return full ? kTileFull : kTilePartial;
}

// The query tiles that see the keys, head by head. A warp classifies 32 at a time.
class QueryTiles {
 public:
  __device__ __forceinline__ QueryTiles(const ForwardParams& params, const KeyTile& keys)
      : params_(params), keys_(keys), head_(keys.kv_head * params.group) {}

  struct Tile {
    int h = -1;  // -1: there are no more
    int q = 0;
    bool partial = false;
  };
  __device__ __forceinline__ Tile next() {
    const int tiles = (params_.q_len + FL_BLOCK_N - 1) / FL_BLOCK_N;
    while (hits_ == 0) {
      if (first_ >= tiles) {
        first_ = 0;
        ++head_;
      }
      if (head_ == (keys_.kv_head + 1) * params_.group) {
        return {};
      }
      const TileKind kind = query_tile_kind(params_, keys_, head_, first_ + static_cast<int>(threadIdx.x % 32));
      hits_ = __ballot_sync(0xffffffff, kind != kTileSkipped);
      partial_ = __ballot_sync(0xffffffff, kind == kTilePartial);
      base_ = first_;
      first_ += 32;
    }
    const int bit = __ffs(hits_) - 1;
    hits_ &= hits_ - 1;
    return {head_, (base_ + bit) * FL_BLOCK_N, (partial_ >> bit & 1) != 0};
  }

 private:
  const ForwardParams& params_;
  const KeyTile& keys_;
  int head_;
  int first_ = 0;
  int base_ = 0;
  u32 hits_ = 0;
  u32 partial_ = 0;
};

}  // namespace flashlift::cuda
