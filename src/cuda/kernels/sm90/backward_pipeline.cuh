// Shared memory and barriers of the Hopper backward kernels: a block's own rows, and a ring of column tiles.
//
// Of one kernel the rows are queries (Q and d_out) and the columns keys (K and V); of the others it is the other way round
// (FL_ROWS_ARE_KEYS). "qk" is of Q's and K's width, "v" of V's and d_out's.
//
// FL_SUMS_FIRST, FL_SUMS_SECOND: which sums over columns the kernel makes (backward_consumer.cuh).
#pragma once

#include "cuda/kernels/common/backward_params.h"
#include "cuda/kernels/sm90/ptx.cuh"

namespace flashlift::cuda {

constexpr bool kRowsAreKeys = FL_ROWS_ARE_KEYS;
constexpr int kConsumers = FL_BLOCK_M / 64;  // warpgroups, each with 64 rows
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kQkStages = FL_STAGES;
constexpr int kVStages = FL_V_STAGES;
// A block begins with so many registers a thread, and waits forever for more than all of them.
constexpr int kRegistersAtStart = 65536 / kThreads / 8 * 8;
static_assert(FL_PRODUCER_REGISTERS + kConsumers * FL_CONSUMER_REGISTERS <= (kConsumers + 1) * kRegistersAtStart,
              "the warpgroups ask for more registers than the block has");

// A row of shared memory is 64 elements: what one 128-byte swizzle covers. Wider heads are several boxes.
constexpr int kQkBoxes = (FL_QK_DIM + 63) / 64;
constexpr int kVBoxes = (FL_V_DIM + 63) / 64;
constexpr int kBoxRows = 64;  // of a bulk copy
constexpr u32 kRowBoxBytes = kBoxRows * 128;
constexpr u32 kRowQkBytes = kQkBoxes * kRowBoxBytes;  // of one warpgroup
constexpr u32 kRowVBytes = kVBoxes * kRowBoxBytes;
constexpr u32 kColumnBoxBytes = FL_BLOCK_N * 128;
constexpr u32 kColumnQkBytes = kQkBoxes * kColumnBoxBytes;
constexpr u32 kColumnVBytes = kVBoxes * kColumnBoxBytes;
constexpr u32 kBlockVBytes = FL_SUMS_SECOND ? kConsumers * kRowVBytes : 0;  // d_p alone asks for them
constexpr u32 kStatisticsBytes = kRowsAreKeys ? FL_BLOCK_N * 2 * sizeof(float) : 0;  // columns' lse, and their deltas
static_assert(FL_BLOCK_N % kBoxRows == 0, "column tiles of whole boxes");

// What the producer tells the consumers about a column tile.
enum ColumnField { kFieldFirst, kFieldHead, kFieldFlags, kFieldCount };
constexpr int kPartial = 1;  // some of its scores are masked, or outside
constexpr int kLast = 2;     // no column tile comes after it

struct SharedLayout {
  u32 rows_qk;
  u32 rows_v;
  u32 columns_qk;
  u32 columns_v;
  u32 statistics;  // of each stage of qk
  u32 rows_full;
  u32 qk_full, qk_empty, v_full, v_empty;  // one barrier a stage
  u32 verdict;                             // a barrier, and an int: is everything to be done again
  u32 fields;                              // kFieldCount ints a stage of qk
};

__device__ __forceinline__ SharedLayout shared_layout(u32 base) {
  SharedLayout layout;
  layout.rows_qk = base;
  layout.rows_v = layout.rows_qk + kConsumers * kRowQkBytes;
  layout.columns_qk = layout.rows_v + kBlockVBytes;
  layout.columns_v = layout.columns_qk + kQkStages * kColumnQkBytes;
  layout.statistics = layout.columns_v + kVStages * kColumnVBytes;
  layout.rows_full = layout.statistics + kQkStages * kStatisticsBytes;
  layout.qk_full = layout.rows_full + 8;
  layout.qk_empty = layout.qk_full + 8 * kQkStages;
  layout.v_full = layout.qk_empty + 8 * kQkStages;
  layout.v_empty = layout.v_full + 8 * kVStages;
  layout.verdict = layout.v_empty + 8 * kVStages;
  layout.fields = layout.verdict + 16;
  return layout;
}

constexpr u32 kSharedBytes = kConsumers * kRowQkBytes + kBlockVBytes +
                             kQkStages * (kColumnQkBytes + kStatisticsBytes + 16 + 4 * kFieldCount) +
                             kVStages * (kColumnVBytes + 16) + 24;
static_assert(kSharedBytes <= FL_SHARED_BYTES, "the host reserves less shared memory than the kernel uses");

// Position in a ring of stages: the stage and, above it, the phase. One register.
template <int kStages>
struct ColumnRing {
  static constexpr u32 kPhase = 1 << 16;
  u32 position = 0;
  __device__ __forceinline__ u32 stage() const { return position % kPhase; }
  __device__ __forceinline__ u32 phase() const { return position / kPhase; }
  __device__ __forceinline__ void advance() {
    ++position;
    if (stage() == kStages) {
      position = (position ^ kPhase) - kStages;
    }
  }
};

// Both rings. With as many stages they are one.
struct ColumnRings {
  ColumnRing<kQkStages> qk;
  ColumnRing<kVStages> v_apart;
  __device__ __forceinline__ u32 v_stage() const { return kQkStages == kVStages ? qk.stage() : v_apart.stage(); }
  __device__ __forceinline__ u32 v_phase() const { return kQkStages == kVStages ? qk.phase() : v_apart.phase(); }
  __device__ __forceinline__ void advance() {
    qk.advance();
    v_apart.advance();
  }
};

__device__ __forceinline__ void init_barriers(const SharedLayout& shared) {
  barrier_init(shared.rows_full, 1);
  barrier_init(shared.verdict, 1);
  for (int stage = 0; stage < kQkStages; ++stage) {
    barrier_init(shared.qk_full + 8 * stage, 1);
    barrier_init(shared.qk_empty + 8 * stage, 4 * kConsumers);
  }
  for (int stage = 0; stage < kVStages; ++stage) {
    barrier_init(shared.v_full + 8 * stage, 1);
    barrier_init(shared.v_empty + 8 * stage, 4 * kConsumers);
  }
  barrier_init_fence();
}

// One arrival a warp. All lanes' reads come before it.
__device__ __forceinline__ void release(u32 barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    barrier_arrive(barrier);
  }
}

// A row's place among the rows' statistics: its lse; its delta comes `tiles.rows` further.
__device__ __forceinline__ float* row_statistics(const ForwardParams& params, const RowTiles& tiles, int b, int h, int q) {
  const long long tile = (static_cast<long long>(b) * params.q_heads + h) * tiles.tiles + q / tiles.rows;
  return tiles.statistics + tile * 2 * tiles.rows + q % tiles.rows;
}

// Does the preprocess leave the call to the portable kernels, which run after these?
__device__ __forceinline__ bool others_run(const BackwardParams& backward, const RowTiles& tiles) {
#if FL_HAS_FALLBACK
  return *tiles.any_large != 0 || (backward.d_out_has_low != nullptr && *backward.d_out_has_low != 0);
#else
  return false;
#endif
}

}  // namespace flashlift::cuda
