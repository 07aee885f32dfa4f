// Shared memory and barriers of the Hopper forward kernel: one Q tile and a ring of K and V tiles.
#pragma once

#include "cuda/kernels/common/scheduler.cuh"
#include "cuda/kernels/sm90/copies.cuh"

namespace flashlift::cuda {

constexpr int kConsumers = FL_BLOCK_M / 64;  // warpgroups, each with 64 rows
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kStages = FL_STAGES;
constexpr int kQStages = FL_Q_STAGES;  // query tiles whose Q has room

constexpr u32 kQBoxBytes = 64 * 128;
constexpr u32 kQBytes = kQkBoxes * kQBoxBytes;  // of one warpgroup

// The producer's message to a consumer warpgroup about a query tile, in addition to Q. Each warpgroup has its own rows,
// fields and barriers, so that none waits for another's last scores before it gets its next Q.
enum TileField { kFieldBatch, kFieldHead, kFieldRow, kFieldPartial, kFieldVisits, kFieldSkipped, kFieldCount };
constexpr int kNoMoreTiles = -1;  // in kFieldVisits
constexpr int kLastRounds = 2;    // of the consumers, after the last scores
// The tile that a query tile without keys visits, so that consumers need no special case. It is after all keys: its
// copies are zeros and read nothing.
constexpr int kNoTile = (1 << 29) / FL_BLOCK_N;
// The number of query tiles whose fields are stored: one is being written while the scores of the next are computed,
// and the one after that may already be assigned.
constexpr int kFieldSlots = 4;

// The scout's message to the producer about the next query tile: its number, or kNoMoreTiles, and its visits.
enum VisitField {
  kVisitTile,
  kVisitPartial,
  kVisitFull,
  kVisitSkipped,                                       // of each warpgroup, for two query tiles in turn
  kVisitPartialBits = kVisitSkipped + 2 * kConsumers,  // of each lane
  kVisitFullBits = kVisitPartialBits + 32,
  kVisitZerosBits = kVisitFullBits + 32,
  kVisitFieldCount = kVisitZerosBits + 32 * FL_SCORE_ZEROS
};

constexpr int kAddsZeros = 1 << 30;  // the mask that the score_mod adds is 0 in the key tile

struct SharedLayout {
  u32 q;
  u32 k;
  u32 v;
  u32 q_full, q_empty;                   // one barrier a warpgroup and stage, 8 bytes apart
  u32 k_full, k_empty, v_full, v_empty;  // one barrier a stage
  u32 kv_tile;                           // one int a stage: its key tile, combined with kAddsZeros
  u32 tile_fields;                       // kFieldCount ints a warpgroup and slot
  u32 visits_full, visits_empty;         // one barrier each
  u32 visits;                            // kVisitFieldCount ints
};

__device__ __forceinline__ SharedLayout shared_layout(u32 base) {
  SharedLayout layout;
  layout.q = base;
  layout.k = layout.q + kQStages * kConsumers * kQBytes;
  layout.v = layout.k + kStages * kKBytes;
  layout.q_full = layout.v + kStages * kVBytes;
  layout.q_empty = layout.q_full + 8 * kQStages * kConsumers;
  layout.k_full = layout.q_empty + 8 * kQStages * kConsumers;
  layout.k_empty = layout.k_full + 8 * kStages;
  layout.v_full = layout.k_empty + 8 * kStages;
  layout.v_empty = layout.v_full + 8 * kStages;
  layout.visits_full = layout.v_empty + 8 * kStages;
  layout.visits_empty = layout.visits_full + 8;
  layout.kv_tile = layout.visits_empty + 8;
  layout.tile_fields = layout.kv_tile + 4 * kStages;
  layout.visits = layout.tile_fields + 4 * kFieldCount * kConsumers * kFieldSlots;
  return layout;
}

// The host asks for this many bytes of dynamic shared memory; see hopper_shared_bytes() in emit/forward_config.cpp.
constexpr u32 kSharedBytes = kConsumers * (kQStages * (kQBytes + 16) + 4 * kFieldCount * kFieldSlots) +
                             kStages * (kKBytes + kVBytes + 32 + 4) + 16 + 4 * kVisitFieldCount;
static_assert(kSharedBytes <= FL_SHARED_BYTES, "the host reserves less shared memory than the kernel uses");

// Position in a ring of stages. One register.
struct RingPosition {
  static constexpr bool kPowerOfTwo = (kStages & (kStages - 1)) == 0;
  static constexpr u32 kPhase = 1 << 16;
  u32 position = 0;  // a count; or the stage and, above it, the phase
  __device__ __forceinline__ u32 stage() const { return kPowerOfTwo ? position % kStages : position % kPhase; }
  __device__ __forceinline__ u32 phase() const { return kPowerOfTwo ? position / kStages % 2 : position / kPhase; }
  __device__ __forceinline__ void advance() {
    ++position;
    if (!kPowerOfTwo && stage() == kStages) {
      position = (position ^ kPhase) - kStages;
    }
  }
};

// Where a warpgroup's Q of a query tile is, and which of its barriers' phases.
__device__ __forceinline__ u32 q_slot(u32 tile, int warpgroup) { return tile % kQStages * kConsumers + warpgroup; }
__device__ __forceinline__ u32 q_phase(u32 tile) { return tile / kQStages % 2; }

__device__ __forceinline__ void init_barriers(const SharedLayout& shared) {
  constexpr int kConsumerWarps = 4 * kConsumers;
  for (int i = 0; i < kQStages * kConsumers; ++i) {
    barrier_init(shared.q_full + 8 * i, 1);
    barrier_init(shared.q_empty + 8 * i, 4);
  }
  for (int stage = 0; stage < kStages; ++stage) {
    barrier_init(shared.k_full + 8 * stage, 1);
    barrier_init(shared.k_empty + 8 * stage, kConsumerWarps);
    barrier_init(shared.v_full + 8 * stage, 1);
    barrier_init(shared.v_empty + 8 * stage, kConsumerWarps);
  }
  barrier_init(shared.visits_full, 32);
  barrier_init(shared.visits_empty, 32);
  barrier_init_fence();
}

// One arrival per warp: a warp's products are complete when its own wait returns. The reads of all its lanes come
// before the arrival.
__device__ __forceinline__ void release(u32 barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    barrier_arrive(barrier);
  }
}

}  // namespace flashlift::cuda
