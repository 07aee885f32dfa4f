// How the parts of d_q that the fused backward kernel's consumers make are added up in memory. FL_ORDERED: in the order of
// the key tiles; RowTiles::last_adders says which one has added to a part last. Otherwise the first key tile stores its
// part, and says so there; the others add theirs whenever they have them.
#pragma once

#include "cuda/kernels/sm90/backward_producer.cuh"

namespace flashlift::cuda {

constexpr int kPartFloats = kPartBytes / sizeof(float);
constexpr int kStored = -1;  // of RowTiles::last_adders: the part is in d_q already

// May a key tile add to a part: has the one before, or without an order the first one?
__device__ __forceinline__ bool allows(int last_adder, int before) {
  return FL_ORDERED ? last_adder == before + 1 : last_adder != 0;
}

// If so, its sums are seen from now on.
__device__ __forceinline__ bool has_added(const RowTiles& tiles, int place, int before) {
  int last;
  asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(last) : "l"(tiles.last_adders + place) : "memory");
  return allows(last, before);
}

// If so, its sums are seen from the next release_part() on.
__device__ __forceinline__ int ask_last_adder(const RowTiles& tiles, int place) {
  return load_relaxed(tiles.last_adders + place);
}

// Waits for this thread's additions, and says that the key tile has added to a part.
__device__ __forceinline__ void release_part(const RowTiles& tiles, int place, int keys) {
  asm volatile(
      "cp.async.bulk.wait_group 0;\nfence.proxy.async.global;\nfence.acq_rel.gpu;\nst.relaxed.gpu.s32 [%0], %1;" ::"l"(
          tiles.last_adders + place),
      "r"(keys + 1)
      : "memory");
}

__device__ __forceinline__ void wait_for_adder(const RowTiles& tiles, int place, int before) {
  while (!has_added(tiles, place, before)) {
  }
}

// One thread: adds a consumer's parts to the sums in memory, whenever it is the key tile's turn. Where a part is the
// last one that is added, the consumer does so itself: this thread brings it the sums of the others.
//
// While a part's sum comes in, the thread asks whether it is the turn of the next part, once: it takes as long, and so
// the next part is added as soon as it is there. Not until it is: others wait for this part's sum. With an order, one fence
// is the release of this part and the acquire of the next one's turn: two of them would take longer than a tile.
//
// part: of a column tile; stage: where consumers put it in shared memory.
__device__ __forceinline__ void add_parts(const SharedLayout& shared, const RowTiles& tiles, int part, int stage) {
  const u32 staged = shared.parts + stage * kPartBytes;
  const u32 empty = shared.parts_empty + 8 * stage;
  bool turn = false;  // is it known to be the visit's
#pragma unroll 1
  for (u32 visit = 0;; ++visit) {
    barrier_wait(shared.parts_full + 8 * stage, visit % 2);
    const u32 fields = shared.visits + 4 * kVisitFieldCount * (visit % kVisitStages);
    const int place = load_shared(fields + 4 * kVisitTile) * kParts + part;
    const int before = load_shared(fields + 4 * kVisitBefore);
    const int keys = load_shared(fields + 4 * kVisitKeys);
    const int flags = load_shared(fields + 4 * kVisitFlags);
    if (keys == kNoKeys) {
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
      return;
    }
    // Of the next visit, if it is of the same key tile: the producer told of it before this part was made.
    int next_place = 0;
    int next_before = -1;
    bool brings_sums = false;
    if ((flags & kLast) == 0) {
      const u32 next_fields = shared.visits + 4 * kVisitFieldCount * ((visit + 1) % kVisitStages);
      next_place = load_shared(next_fields + 4 * kVisitTile) * kParts + part;
      next_before = load_shared(next_fields + 4 * kVisitBefore);
      brings_sums = kStoresFinal && next_before >= 0 && (load_shared(next_fields + 4 * kVisitFlags) & kFinal) != 0;
    }
    const auto bring_sums = [&] {
      asm volatile("fence.proxy.async.global;" ::: "memory");
      barrier_arrive_expect(empty, kPartBytes);
      load_bytes(staged, tiles.d_q_sums + static_cast<long long>(next_place) * kPartFloats, kPartBytes, empty);
    };
    bool next_turn = false;
    if ((flags & kNothing) != 0) {
      if (brings_sums) {
        fence_async();  // they come where the consumers' part is
      } else {
        barrier_arrive(empty);
      }
    } else if (kStoresFinal && (flags & kFinal) != 0) {
      tiles.last_adders[place] = kStored;
      if (!brings_sums) {
        barrier_arrive(empty);
      }
    } else {
      fence_async();
      float* const sums = tiles.d_q_sums + static_cast<long long>(place) * kPartFloats;
      if (before >= 0) {
        if (!turn) {
          wait_for_adder(tiles, place, before);
        }
        asm volatile("fence.proxy.async.global;" ::: "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(sums),
                     "r"(staged), "r"(kPartBytes)
                     : "memory");
      } else {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(sums), "r"(staged),
                     "r"(kPartBytes)
                     : "memory");
      }
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      const bool asks_once = FL_ORDERED && !brings_sums;
      const int next_last = asks_once ? ask_last_adder(tiles, next_place) : 0;
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      if (!brings_sums) {
        barrier_arrive(empty);
      }
      if (!asks_once) {
        next_turn = next_before >= 0 && has_added(tiles, next_place, next_before);
      }
      if (brings_sums && next_turn) {
        bring_sums();
      }
      if (FL_ORDERED || before < 0) {
        release_part(tiles, place, keys);
      }
      if (asks_once) {
        next_turn = next_before >= 0 && allows(next_last, next_before);
      }
    }
    if (brings_sums && !next_turn) {
      wait_for_adder(tiles, next_place, next_before);
      bring_sums();
    }
    turn = next_turn;
#if FL_RINGS
    if ((flags & kLast) != 0) {
      const u32 added = shared.ring + 4 * (kAddedKeyTiles + part);
      store_shared_relaxed(added, load_shared(added) + 1);
    }
#endif
  }
}

}  // namespace flashlift::cuda
