// The key tiles that a block visits (common/scheduler.cuh). The block's first warp finds them and keeps them in shared
// memory, because the loop over tiles needs all registers.
#pragma once

#include "cuda/kernels/common/scheduler.cuh"

namespace flashlift::cuda {

class BlockVisits {
 public:
  struct Memory {
    u32 partial_bits[32];  // as in Visits
    u32 full_bits[32];
    u32 zeros_bits[32];
    int partial, full;            // counts
    int partial_left, full_left;  // of the tiles still to come
    int first;                    // the first of 32 tiles; `hits` has those still to come
    u32 hits, zeros;
    int tile;  // the latest tile
    int adds_zeros;
  };
  static constexpr int kBytes = FL_VISITS_BYTES;
  static_assert(!FL_FINDS_VISITS || sizeof(Memory) <= kBytes, "the host reserves less shared memory for visits");

  // Finds all visits, and the first. Called by all threads.
  __device__ __forceinline__ BlockVisits(const ForwardParams& params, const QueryTile& tile, void* memory)
      : memory_(*static_cast<Memory*>(memory)) {
#if FL_FINDS_VISITS
    if (threadIdx.x < 32) {
      const Visits visits = find_visits(params, tile);
      memory_.partial_bits[threadIdx.x] = visits.partial_bits;
      memory_.full_bits[threadIdx.x] = visits.full_bits;
      memory_.zeros_bits[threadIdx.x] = visits.zeros_bits;
      if (threadIdx.x == 0) {
        memory_.partial = memory_.partial_left = visits.partial;
        memory_.full = memory_.full_left = visits.full;
        memory_.first = beginning(tile);
        memory_.hits = memory_.zeros = 0;
        memory_.tile = memory_.adds_zeros = 0;
      }
      __syncwarp();
      if (visits.partial + visits.full > 0) {
        advance(params, tile);
      }
    }
    __syncthreads();
#else
    const Visits visits = find_visits(params, tile);
    partial_ = visits.partial;
    full_ = visits.full;
#endif
  }

#if FL_FINDS_VISITS
  __device__ __forceinline__ int partial() const { return memory_.partial; }
  __device__ __forceinline__ int full() const { return memory_.full; }
  __device__ __forceinline__ int first_tile() const { return memory_.tile; }
  // Called after a barrier that follows advance().
  __device__ __forceinline__ int tile_after(int) const { return memory_.tile; }
  // Whether the mask that the score_mod adds is 0 in that tile.
  __device__ __forceinline__ bool adds_zeros() const { return FL_SCORE_ZEROS && memory_.adds_zeros != 0; }

  // Advances to the next tile, which must exist: partial ones first, and the latest keys first. Called by all threads.
  __device__ __forceinline__ void advance(const ForwardParams& params, const QueryTile& tile) {
    if (threadIdx.x >= 32) {
      return;
    }
    const bool partial = memory_.partial_left > 0;
    int first = memory_.first;
    u32 hits = memory_.hits;
    u32 zeros = memory_.zeros;
#pragma unroll 1
    while (hits == 0) {
      first -= 32;
      if (tile.end_kv_tile - tile.first_kv_tile <= kRememberedTiles) {
        hits = partial ? memory_.partial_bits[first / 32] : memory_.full_bits[first / 32];
        zeros = memory_.zeros_bits[first / 32];
      } else {
        const TileClass found =
            classify_tile(params, tile, tile.first_kv_tile + first + static_cast<int>(threadIdx.x));
        hits = __ballot_sync(0xffffffff, found.kind == (partial ? kTilePartial : kTileFull));
        zeros = __ballot_sync(0xffffffff, found.zeros);
      }
    }
    const int bit = 31 - __clz(hits);
    const bool last_partial = memory_.partial_left == 1;
    __syncwarp();
    if (threadIdx.x == 0) {
      memory_.tile = tile.first_kv_tile + first + bit;
      memory_.adds_zeros = static_cast<int>(zeros >> bit & 1);
      memory_.hits = last_partial ? 0 : hits ^ 1u << bit;
      memory_.zeros = zeros;
      memory_.first = last_partial ? beginning(tile) : first;
      memory_.partial_left -= partial ? 1 : 0;
    }
    __syncwarp();
  }

 private:
  static __device__ __forceinline__ int beginning(const QueryTile& tile) {
    return (tile.end_kv_tile - tile.first_kv_tile + 31) / 32 * 32;
  }
#else
  __device__ __forceinline__ int partial() const { return partial_; }
  __device__ __forceinline__ int full() const { return full_; }
  __device__ __forceinline__ int first_tile() const { return partial_ + full_ - 1; }
  __device__ __forceinline__ int tile_after(int tile) const { return tile - 1; }
  __device__ __forceinline__ bool adds_zeros() const { return false; }
  __device__ __forceinline__ void advance(const ForwardParams&, const QueryTile&) {}

 private:
  int partial_;
  int full_;
#endif

 private:
  Memory& memory_;
};

}  // namespace flashlift::cuda
