// The key tiles that a block visits (common/scheduler.cuh). They are kept in shared memory, and the block's first warp
// advances, because the loop over tiles needs all registers.
#pragma once

#include "cuda/kernels/common/scheduler.cuh"

namespace flashlift::cuda {

class BlockVisits {
 public:
  struct Memory {
    u32 partial_bits[32];  // as in Visits
    u32 full_bits[32];
    u32 zeros_bits[32];
    int partial;       // count
    int partial_left;  // of the tiles still to come
    int first;         // of 32 tiles; `hits` has those still to come
    u32 hits, zeros;
    int tile;  // the next one
    int adds_zeros;
  };
  static constexpr int kBytes = FL_VISITS_BYTES;
  static_assert(!FL_FINDS_VISITS || sizeof(Memory) <= kBytes, "the host reserves less shared memory for visits");

  // Finds all visits, and the first. Called by all threads: each warp finds them itself, so that none waits for
  // another. What shared memory has may be read behind a barrier.
  __device__ __forceinline__ BlockVisits(const ForwardParams& params, const QueryTile& tile, void* memory)
      : memory_(*static_cast<Memory*>(memory)) {
    const Visits visits = find_visits(params, tile);
    count_ = visits.partial + visits.full;
#if FL_FINDS_VISITS
    const bool partial = visits.partial > 0;
    Group group;
    if (count_ > 0) {
      const u32 bits = partial ? visits.partial_bits : visits.full_bits;
      group = group_before(params, tile, beginning(tile), partial, [&](int word) {
        return Bits{__shfl_sync(0xffffffff, bits, word), __shfl_sync(0xffffffff, visits.zeros_bits, word)};
      });
    }
    first_tile_ = group.tile(tile);
    first_adds_zeros_ = group.adds_zeros();
    if (threadIdx.x < 32) {
      memory_.partial_bits[threadIdx.x] = visits.partial_bits;
      memory_.full_bits[threadIdx.x] = visits.full_bits;
      memory_.zeros_bits[threadIdx.x] = visits.zeros_bits;
      if (threadIdx.x == 0) {
        memory_.partial = visits.partial;
        note(tile, group, visits.partial);
      }
      __syncwarp();
    }
#else
    partial_ = visits.partial;
#endif
  }

  __device__ __forceinline__ int count() const { return count_; }

#if FL_FINDS_VISITS
  __device__ __forceinline__ int first_tile() const { return first_tile_; }
  __device__ __forceinline__ bool first_adds_zeros() const { return FL_SCORE_ZEROS && first_adds_zeros_; }
  // How many of them are partial. This and what follows are called behind a barrier.
  __device__ __forceinline__ int partial() const { return memory_.partial; }
  // The tile to which advance() went before that barrier.
  __device__ __forceinline__ int tile_after(int) const { return memory_.tile; }
  // Whether the mask that the score_mod adds is 0 in that tile.
  __device__ __forceinline__ bool adds_zeros() const { return FL_SCORE_ZEROS && memory_.adds_zeros != 0; }

  // Advances to the next tile, which must exist: partial ones first, and the latest keys first. Called by all threads.
  __device__ __forceinline__ void advance(const ForwardParams& params, const QueryTile& tile) {
    if (threadIdx.x >= 32) {
      return;
    }
    const int partial_left = memory_.partial_left;
    const bool partial = partial_left > 0;
    Group group = {memory_.first, {memory_.hits, memory_.zeros}};
    if (group.bits.hits == 0) {
      group = group_before(params, tile, group.first, partial, [&](int word) {
        return Bits{partial ? memory_.partial_bits[word] : memory_.full_bits[word], memory_.zeros_bits[word]};
      });
    }
    __syncwarp();
    if (threadIdx.x == 0) {
      note(tile, group, partial_left);
    }
    __syncwarp();
  }

 private:
  // Of 32 tiles: those that are visited (without those that were), and those in which the score_mod's mask is 0.
  struct Bits {
    u32 hits, zeros;
  };

  struct Group {
    int first = 0;
    Bits bits = {1, 0};

    // The latest one.
    __device__ __forceinline__ int bit() const { return 31 - __clz(bits.hits); }
    __device__ __forceinline__ int tile(const QueryTile& tile) const { return tile.first_kv_tile + first + bit(); }
    __device__ __forceinline__ bool adds_zeros() const { return bits.zeros >> bit() & 1; }
  };

  static __device__ __forceinline__ int beginning(const QueryTile& tile) {
    return (tile.end_kv_tile - tile.first_kv_tile + 31) / 32 * 32;
  }

  // The group before `first` that has visits, of partial or of full tiles. remembered(i): the bits of the 32 tiles from
  // 32i on.
  template <typename Remembered>
  static __device__ __forceinline__ Group group_before(const ForwardParams& params, const QueryTile& tile, int first,
                                                       bool partial, const Remembered& remembered) {
    Bits bits = {0, 0};
#pragma unroll 1
    while (bits.hits == 0) {
      first -= 32;
      if (tile.end_kv_tile - tile.first_kv_tile <= kRememberedTiles) {
        bits = remembered(first / 32);
      } else {
        const int lane = static_cast<int>(threadIdx.x % 32);
        const TileClass found = classify_tile(params, tile, tile.first_kv_tile + first + lane);
        bits.hits = __ballot_sync(0xffffffff, found.kind == (partial ? kTilePartial : kTileFull));
        bits.zeros = __ballot_sync(0xffffffff, found.zeros);
      }
    }
    return {first, bits};
  }

  // The group's latest tile is the next one. partial_left: how many are partial, with it.
  __device__ __forceinline__ void note(const QueryTile& tile, const Group& group, int partial_left) {
    const bool last_partial = partial_left == 1;
    memory_.tile = group.tile(tile);
    memory_.adds_zeros = static_cast<int>(group.adds_zeros());
    memory_.hits = last_partial ? 0 : group.bits.hits ^ 1u << group.bit();
    memory_.zeros = group.bits.zeros;
    memory_.first = last_partial ? beginning(tile) : group.first;
    memory_.partial_left = max(partial_left - 1, 0);
  }

  int first_tile_;
  bool first_adds_zeros_;
#else
  __device__ __forceinline__ int first_tile() const { return count_ - 1; }
  __device__ __forceinline__ bool first_adds_zeros() const { return false; }
  __device__ __forceinline__ int partial() const { return partial_; }
  __device__ __forceinline__ int tile_after(int tile) const { return tile - 1; }
  __device__ __forceinline__ bool adds_zeros() const { return false; }
  __device__ __forceinline__ void advance(const ForwardParams&, const QueryTile&) {}

 private:
  int partial_;
#endif
  int count_;
  Memory& memory_;
};

}  // namespace flashlift::cuda
