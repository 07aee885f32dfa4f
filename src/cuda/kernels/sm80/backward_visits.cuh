// The query tiles that see a block's keys, in the fused backward kernel. The block's first warp finds them and keeps
// them in shared memory, since the products need all registers.
//
// Blocks add to d_q in the order of their key tiles. They are numbered as they start, and wait only for lower numbers.
// All blocks iterate from the last queries to the first. Under a causal mask, the first keys, which most queries see,
// take the most time and come first, and blocks that start together process the same queries one after the other.
#pragma once

#include "cuda/kernels/common/key_tiles.cuh"
#include "cuda/kernels/common/keys.cuh"

namespace flashlift::cuda {

struct QueryVisit {
  int h;  // -1: there is none
  int q;  // the tile's first query
  int partial;
  int before;  // the key tile that adds to its d_q before this one, or -1
  // Its first rows, and its place among all tiles of all heads: found once for all threads.
  const InputElement* q_rows;
  const InputElement* d_out_rows;
  long long place;
};

class KeyVisits {
 public:
  struct Memory {
    QueryVisit ring[4];
    int head;
    int base;  // of 32 tiles, counted from the last: that of the first bit
    int next;  // the first that has not been looked at
    u32 hits, partial, follows;
  };
  static constexpr int kBytes = 256;
  static_assert(sizeof(Memory) <= kBytes);

  __device__ __forceinline__ KeyVisits(const ForwardParams& params, const BackwardParams& backward,
                                       const RowTiles& tiles, const KeyTile& keys, void* memory)
      : params_(params),
        backward_(backward),
        tiles_(tiles),
        keys_(keys),
        memory_(*static_cast<Memory*>(memory)) {
    if (threadIdx.x == 0) {
      memory_.head = keys.kv_head * params.group;
      memory_.next = 0;
      memory_.hits = 0;
    }
    __syncwarp();
  }

  // Visit number i, behind a barrier that comes after advance(i). It stays until advance(i + 4).
  __device__ __forceinline__ const QueryVisit& visit(int i) const { return memory_.ring[i % 4]; }

  // Finds visit number i, after those before it. Called by the first warp.
  __device__ __forceinline__ void advance(int i) {
    const int tiles = (params_.q_len + FL_BLOCK_M - 1) / FL_BLOCK_M;
    int head = memory_.head;
    int next = memory_.next;
    int base = memory_.base;
    u32 hits = memory_.hits;
    u32 partial = memory_.partial;
    u32 follows = memory_.follows;
    const auto remember = [&](const QueryVisit& found) {
      __syncwarp();
      if (threadIdx.x == 0) {
        memory_.head = head;
        memory_.next = next;
        memory_.base = base;
        memory_.hits = hits;
        memory_.partial = partial;
        memory_.follows = follows;
        memory_.ring[i % 4] = found;
      }
      __syncwarp();
    };
    const int end_head = (keys_.kv_head + 1) * params_.group;
#pragma unroll 1
    while (hits == 0) {
      if (next >= tiles) {
        next = 0;
        ++head;
      }
      if (head >= end_head) {
        remember({-1, 0, 0, -1, nullptr, nullptr, 0});
        return;
      }
      const int tile = tiles - 1 - next - static_cast<int>(threadIdx.x);
      const TileKind kind = classify(head, tile, keys_.index);
      hits = __ballot_sync(0xffffffff, kind != kTileSkipped);
      partial = __ballot_sync(0xffffffff, is_partial(kind));
      follows = __ballot_sync(0xffffffff, kind != kTileSkipped && keys_.index > 0 &&
                                              classify(head, tile, keys_.index - 1) != kTileSkipped);
      base = next;
      next += 32;
    }
    const int bit = __ffs(hits) - 1;
    hits &= hits - 1;
    const int tile = tiles - 1 - base - bit;
    const int q = tile * FL_BLOCK_M;
    const Strides& strides = backward_.d_out_strides;
    remember({head, q, static_cast<int>(partial >> bit & 1),
              (follows >> bit & 1) != 0 ? keys_.index - 1 : last_before(head, tile, keys_.index - 1),
              query_row(params_, keys_.b, head, q),
              static_cast<const InputElement*>(backward_.d_out) + keys_.b * strides.batch + head * strides.head +
                  q * strides.row,
              (static_cast<long long>(keys_.b) * params_.q_heads + head) * tiles_.tiles + tile});
  }

 private:
  __device__ __forceinline__ TileKind classify(int h, int tile, int key_tile) const {
    const int q_first = tile * FL_BLOCK_M;
    const int kv_first = key_tile * FL_BLOCK_N;
    if (tile < 0 || key_tile < 0) {
      return kTileSkipped;
    }
    const int q_last = min(q_first + FL_BLOCK_M, params_.q_len) - 1;
    const int kv_last = min(kv_first + FL_BLOCK_N, params_.kv_len) - 1;
    const bool full = q_last - q_first == FL_BLOCK_M - 1 && kv_last - kv_first == FL_BLOCK_N - 1;
    return classify_scores(params_, keys_.b, h, q_first, q_last, kv_first, kv_last, full);
  }

  // The last key tile before `end` that the queries see, or -1.
  __device__ __forceinline__ int last_before(int h, int tile, int end) const {
#if FL_FINDS_VISITS
#pragma unroll 1
    for (int base = end - 1; base >= 0; base -= 32) {
      const u32 hits =
          __ballot_sync(0xffffffff, classify(h, tile, base - static_cast<int>(threadIdx.x)) != kTileSkipped);
      if (hits != 0) {
        return base - (__ffs(hits) - 1);
      }
    }
#endif
    return -1;
  }

  const ForwardParams& params_;
  const BackwardParams& backward_;
  const RowTiles& tiles_;
  const KeyTile& keys_;
  Memory& memory_;
};

}  // namespace flashlift::cuda
