// Shared memory and barriers of the Hopper backward kernels: a block's own rows, and a ring of column tiles.
//
// The fused kernel (FL_FUSED, rows are keys) also computes d_q: its consumers exchange d_s through shared memory, each
// computes a part of d_q, and warps beside the producer add the parts to sums in memory.
//
// In one kernel, the rows are queries (Q and d_out) and the columns are keys (K and V); in the others it is the other
// way round (FL_ROWS_ARE_KEYS). "qk" tiles have the width of Q and K, "v" tiles that of V and d_out.
//
// FL_SUMS_FIRST, FL_SUMS_SECOND: which sums over columns the kernel makes (backward_consumer.cuh). FL_CAPTURES: it makes
// none of these, but sums for gradients of captured tensors (backward_captures.cu). FL_ROLES: each warpgroup makes one of
// the two (backward_keys_roles.cu).
#pragma once

#include "cuda/kernels/common/key_tiles.cuh"
#include "cuda/kernels/sm90/ptx.cuh"
#include "gradient.cuh"

namespace flashlift::cuda {

constexpr bool kRowsAreKeys = FL_ROWS_ARE_KEYS;
constexpr int kConsumers = FL_BLOCK_M / 64;  // warpgroups, each with 64 rows unless by roles
// By roles, but in the fused kernel, the two blocks of a cluster load columns for each other.
constexpr bool kSharesLoads = FL_ROLES && !FL_FUSED;
// In the fused kernel by roles, one more warpgroup computes parts of d_q.
constexpr int kPartConsumers = FL_FUSED && FL_ROLES ? 1 : 0;
constexpr int kThreads = 128 * (kConsumers + kPartConsumers + 1);
// By roles, a block has 64 keys, and the two blocks of a cluster have FL_BLOCK_M.
constexpr int kRowWarpgroups = FL_ROLES ? 1 : kConsumers;
constexpr int kQkStages = FL_STAGES;
constexpr int kVStages = FL_V_STAGES;
// Of the fused kernel's own keys: with two, those of the next key tile come while the block still has its last queries.
constexpr int kKeyStages = FL_KEY_STAGES;
// The number of registers per thread at the start of a block. A block that requests more registers than there are waits
// forever.
constexpr int kRegistersAtStart = 65536 / kThreads / 8 * 8;
constexpr int kPartRegisters = 80;  // of the warpgroup for parts of d_q
static_assert(FL_PRODUCER_REGISTERS + kConsumers * FL_CONSUMER_REGISTERS + kPartConsumers * kPartRegisters <=
                  kThreads / 128 * kRegistersAtStart,
              "the warpgroups ask for more registers than the block has");

// A row of shared memory is 64 elements: what one 128-byte swizzle covers. Wider heads are several boxes.
constexpr int kQkBoxes = (FL_QK_DIM + 63) / 64;
constexpr int kVBoxes = (FL_V_DIM + 63) / 64;
constexpr int kBoxRows = 64;  // of a bulk copy
// A block's own rows may have narrow boxes, of 16 elements and with a 32-byte swizzle: the fused kernel's parts of d_q then
// begin at any multiple of 16 columns of its keys.
constexpr int kRowBoxColumns = FL_ROW_BOX_COLUMNS;
static_assert(kRowBoxColumns == 64 || kRowBoxColumns == 16, "a swizzle of 128 or 32 bytes");
constexpr int kRowQkBoxes = kRowBoxColumns == 64 ? kQkBoxes : kConsumers * FL_PART_COLUMNS / kRowBoxColumns;
constexpr int kRowVBoxes = (FL_V_DIM + kRowBoxColumns - 1) / kRowBoxColumns;
constexpr u32 kRowBoxBytes = kBoxRows * kRowBoxColumns * 2;
constexpr u32 kRowQkBytes = kRowQkBoxes * kRowBoxBytes;  // of one warpgroup
constexpr u32 kRowVBytes = kRowVBoxes * kRowBoxBytes;
constexpr u32 kColumnBoxBytes = FL_BLOCK_N * 128;
constexpr u32 kColumnQkBytes = kQkBoxes * kColumnBoxBytes;
constexpr u32 kColumnVBytes = kVBoxes * kColumnBoxBytes;
constexpr bool kComputesDp = FL_SUMS_SECOND || FL_CAPTURES;
constexpr u32 kRowsQkBytes = kRowWarpgroups * kRowQkBytes;  // of the block
constexpr u32 kBlockVBytes = kComputesDp ? kRowWarpgroups * kRowVBytes : 0;  // d_p alone asks for them
// The columns' lse, and their deltas. In the fused kernel they come with v, which has fewer stages: consumers need them
// when they have waited for both halves of a tile.
constexpr bool kStatisticsWithV = FL_FUSED && !FL_ROLES;
constexpr int kStatisticsStages = kStatisticsWithV ? kVStages : kQkStages;
constexpr u32 kStatisticsBytes = kRowsAreKeys && !FL_CAPTURES ? FL_BLOCK_N * 2 * sizeof(float) : 0;
static_assert(FL_BLOCK_N % kBoxRows == 0, "column tiles of whole boxes");

// The producer's message to the consumers about a column tile.
enum ColumnField { kFieldFirst, kFieldHead, kFieldFlags, kFieldCount };
constexpr int kPartial = 1;  // some of its scores are masked, or outside
constexpr int kLast = 2;     // no column tile comes after it
constexpr int kNothing = 4;  // it stands for no columns at all, or its part of d_q has been added already
constexpr int kFirst = 8;    // no column tile comes before it
constexpr int kFinal = 16;   // no other key tile adds to the part of d_q after it: it leaves as it is to be stored
constexpr int kPlain = 32;   // it is partial, but of mask_mod no more than plain_mask_mod is to be evaluated
constexpr int kLeaves = 64;  // the block leaves its key tile after this one (key_rings.cuh)
constexpr int kStaysTogether = 128;  // the block does not leave its key tile any more

// For the fused kernel: d_s of a column tile, in groups of 64 queries, with a row of 128 bytes per key; and a part of
// d_q for each consumer, in the order of a warpgroup's accumulators: 16 bytes per thread, thread after thread, and so
// on. A part is half of the queries where a tile has 128 of them, otherwise half of the columns.
constexpr int kGradientStages = FL_FUSED ? 2 : 0;
constexpr u32 kGradientBoxBytes = kConsumers * 64 * 128;
constexpr u32 kGradientBytes = FL_BLOCK_N / 64 * kGradientBoxBytes;
// By roles, a block has two parts, a quarter of the columns each: one thread would add a half more slowly than halves come.
constexpr int kPartStages = FL_FUSED ? 2 : 0;
constexpr int kParts = FL_ROLES ? 2 * kPartStages : kPartStages;  // of a column tile
// Arrivals that give a tile of rows back (kernels for captured tensors have one for each block): of warps, or of all
// lanes if they have read the rows' statistics with them.
constexpr int kRowReaders =
    kRowsAreKeys ? 4 * (kConsumers + kPartConsumers) + (FL_FUSED && FL_HAS_MASK_MOD ? 1 : 0) : 128 * kConsumers;
constexpr u32 kRowStatisticsBytes = !kRowsAreKeys && !FL_CAPTURES ? FL_BLOCK_M * 2 * sizeof(float) : 0;
// Arrivals that give a stage of qk back, or of v. Every lane tells for itself that it has read the queries' statistics: so
// racecheck can follow the order, which it does not through __syncwarp.
// (If blocks load for each other, a warp of the other block arrives once.)
constexpr u32 kQkReaders = (kStatisticsBytes > 0 ? 128 : 4) * kConsumers + (kSharesLoads ? 4 * kConsumers : 0);
constexpr u32 kVReaders = (kStatisticsWithV ? 128 : kSharesLoads ? 8 : 4) * kConsumers;
constexpr bool kPartsOfQueries = FL_BLOCK_N > 64;
constexpr int kPartColumns = FL_ROLES ? FL_PART_COLUMNS / 2 : FL_PART_COLUMNS;
constexpr int kPartSums = kPartColumns / 2;  // of a thread
constexpr u32 kPartBytes = 64 * kPartColumns * sizeof(float);
static_assert(!FL_FUSED || (kPartsOfQueries ? FL_BLOCK_N == 64 * kConsumers && kPartColumns >= FL_QK_DIM
                                            : kPartColumns * kParts >= FL_QK_DIM));
// What the producer tells the warps that add parts up, and the consumers, of which tile a part is. It is at most
// kQkStages tiles ahead of the consumers (by roles, it tells them of the places of two more), and these are two ahead of
// the parts that they have made.
constexpr int kVisitStages = FL_FUSED ? 16 : 0;
static_assert(!FL_FUSED || kQkStages + 6 < kVisitStages);
enum VisitField { kVisitTile, kVisitBefore, kVisitFlags, kVisitKeys, kVisitFieldCount };
// Do parts that no other key tile adds to leave as they are to be stored? It takes an order to know them, and registers
// that tiles of 128 queries, and masks that search, do not leave.
constexpr bool kStoresFinal =
    FL_FUSED && !FL_ROLES && FL_ORDERED && !kPartsOfQueries && FL_HEAD_DIM % 8 == 0 &&
    !(FL_HAS_MASK_MOD && FL_MASK_SEARCHES);
constexpr int kNoKeys = -1;  // instead of a key tile's number: no work is left
// What the producer tells the consumers of the block's key tile, since they would need divisions to find it: its number or
// kNoKeys, its batch, its key-value head, and the block's first key.
enum KeyField { kKeyNumber, kKeyBatch, kKeyHead, kKeyFirst, kKeyFieldCount };
// What the producer knows: the block's key tile, as KeyRing and RingTile have it; how many key tiles the block has had; and
// of how many of them each thread that adds parts has added all parts.
enum RingWord { kRingFirst, kRingSize, kRingPlace, kRingEnd, kKeyTiles, kAddedKeyTiles, kRingWords = kAddedKeyTiles + 2 };
constexpr int kNoRows = -1;  // instead of the number of a tile of rows
// The scores whose diagonals a warpgroup sums (common/diagonals.cuh).
constexpr u32 kDiagonalBytes =
    FL_CAPTURES && !kRowsAreKeys && FL_DIAGONAL_GRADIENTS ? 64 / 2 * (FL_BLOCK_N + 8) * sizeof(float) : 0;

// By roles: operands that one warpgroup hands to the other, and numbers of key tiles that one block hands to the other.
constexpr int kExchangeStages = FL_ROLES ? (FL_FUSED ? 1 : 2) : 0;
constexpr u32 kExchangeBytes = 64 * FL_BLOCK_N * 2;
constexpr int kClusterTurns = FL_ROLES ? 8 : 0;
// In the fused kernel by roles, of the other block's keys: the columns of this block's part of d_q. Each block has d_s of both
// blocks' keys, its own first.
constexpr u32 kOtherKeysBytes = kPartConsumers * FL_PART_COLUMNS * 64 * 2;
constexpr u32 kBlockGradientBytes = kGradientBytes / 2;

struct SharedLayout {
  u32 rows_qk;  // of each stage of keys
  u32 rows_v;
  u32 columns_qk;
  u32 columns_v;
  u32 statistics;                          // of each stage of qk, or of v
  u32 row_statistics;                      // of the rows, if they are queries
  u32 rows_full, rows_empty;               // a barrier each, or one a stage of keys
  u32 qk_full, qk_empty, v_full, v_empty;  // one barrier a stage
  u32 verdict;                             // a barrier, and an int: is everything to be done again
  u32 fields;                              // kFieldCount ints a stage of qk
  // Of the fused kernel.
  u32 gradients, gradients_full, gradients_empty;
  u32 parts, parts_full, parts_empty;
  u32 visits;    // kVisitFieldCount ints each
  u32 key_tile;  // kKeyFieldCount ints a stage of keys
  u32 ring;      // RingWord ints
  u32 row_tiles;  // of other kernels, an int for each of two turns: the number of the block's tile of rows, or kNoRows
  u32 diagonals;  // of each consumer
  u32 tables;     // of elements
  // By roles.
  u32 exchange, exchange_full, exchange_empty;
  u32 cluster_turns, cluster_turns_full;
  u32 other_keys, other_gradients_full;
};

__device__ __forceinline__ SharedLayout shared_layout(u32 base) {
  SharedLayout layout;
  layout.rows_qk = base;
  layout.rows_v = layout.rows_qk + kKeyStages * kRowsQkBytes;
  layout.other_keys = layout.rows_v + kBlockVBytes;
  layout.gradients = layout.other_keys + kOtherKeysBytes;
  layout.parts = layout.gradients + kGradientStages * kGradientBytes;
  layout.columns_qk = layout.parts + kPartStages * kPartBytes;
  layout.columns_v = layout.columns_qk + kQkStages * kColumnQkBytes;
  layout.diagonals = layout.columns_v + kVStages * kColumnVBytes;
  layout.tables = layout.diagonals + kConsumers * kDiagonalBytes;
  layout.exchange = layout.tables + FL_TABLES * FL_TABLE_BYTES;
  layout.statistics = layout.exchange + kExchangeStages * kExchangeBytes;
  layout.row_statistics = layout.statistics + kStatisticsStages * kStatisticsBytes;
  layout.rows_full = layout.row_statistics + kRowStatisticsBytes;
  layout.qk_full = layout.rows_full + 8 * kKeyStages;
  layout.qk_empty = layout.qk_full + 8 * kQkStages;
  layout.v_full = layout.qk_empty + 8 * kQkStages;
  layout.v_empty = layout.v_full + 8 * kVStages;
  layout.verdict = layout.v_empty + 8 * kVStages;
  layout.gradients_full = layout.verdict + 16;
  layout.gradients_empty = layout.gradients_full + 8 * kGradientStages;
  layout.parts_full = layout.gradients_empty + 8 * kGradientStages;
  layout.parts_empty = layout.parts_full + 8 * kPartStages;
  layout.rows_empty = layout.parts_empty + 8 * kPartStages;
  layout.other_gradients_full = layout.rows_empty + 8 * kKeyStages;
  layout.exchange_full = layout.other_gradients_full + 8 * kPartConsumers * kGradientStages;
  layout.exchange_empty = layout.exchange_full + 8 * kExchangeStages;
  layout.cluster_turns_full = layout.exchange_empty + 8 * kExchangeStages;
  layout.cluster_turns = layout.cluster_turns_full + 8 * kClusterTurns;
  layout.visits = layout.cluster_turns + 4 * kClusterTurns;
  layout.key_tile = layout.visits + 4 * kVisitFieldCount * kVisitStages;
  layout.ring = layout.key_tile + 4 * kKeyFieldCount * kKeyStages;
  layout.row_tiles = layout.ring + 4 * kRingWords;
  layout.fields = layout.row_tiles + 8;
  return layout;
}

constexpr u32 kSharedBytes = kKeyStages * kRowsQkBytes + kBlockVBytes + kOtherKeysBytes +
                             8 * kPartConsumers * kGradientStages +
                             kExchangeStages * (kExchangeBytes + 16) + kClusterTurns * 12 +
                             kQkStages * (kColumnQkBytes + 16 + 4 * kFieldCount) +
                             kStatisticsStages * kStatisticsBytes +
                             kVStages * (kColumnVBytes + 16) + 8 + 16 * kKeyStages +
                             kGradientStages * (kGradientBytes + 16) +
                             kPartStages * (kPartBytes + 16) + 4 * kVisitFieldCount * kVisitStages + 16 +
                             4 * kKeyFieldCount * kKeyStages + 4 * kRingWords + kConsumers * kDiagonalBytes +
                             FL_TABLES * FL_TABLE_BYTES + kRowStatisticsBytes;
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
  // Before the first position it is one whose stage has been given back, as barriers have it at the beginning.
  __device__ __forceinline__ ColumnRing before() const {
    return {stage() == 0 ? (position ^ kPhase) + kStages - 1 : position - 1};
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
  __device__ __forceinline__ ColumnRings before() const { return {qk.before(), v_apart.before()}; }
};

__device__ __forceinline__ void init_barriers(const SharedLayout& shared) {
  for (int stage = 0; stage < kKeyStages; ++stage) {
    barrier_init(shared.rows_full + 8 * stage, 1);
    barrier_init(shared.rows_empty + 8 * stage, kRowReaders);
  }
  barrier_init(shared.verdict, 1);
  for (int stage = 0; stage < kQkStages; ++stage) {
    barrier_init(shared.qk_full + 8 * stage, 1);
    barrier_init(shared.qk_empty + 8 * stage, kQkReaders);
  }
  for (int stage = 0; stage < kVStages; ++stage) {
    barrier_init(shared.v_full + 8 * stage, 1);
    barrier_init(shared.v_empty + 8 * stage, kVReaders);
  }
  for (int stage = 0; stage < kGradientStages; ++stage) {
    barrier_init(shared.gradients_full + 8 * stage, FL_ROLES ? 4 : 4 * kConsumers);
    barrier_init(shared.gradients_empty + 8 * stage, 4 * kConsumers);
    if (kPartConsumers > 0) {
      barrier_init(shared.other_gradients_full + 8 * stage, 1);
    }
  }
  for (int stage = 0; stage < kPartStages; ++stage) {
    barrier_init(shared.parts_full + 8 * stage, 128);  // each lane: see kQkReaders
    barrier_init(shared.parts_empty + 8 * stage, 1);  // and the bytes of sums that a final part is added to
  }
  for (int stage = 0; stage < kExchangeStages; ++stage) {
    barrier_init(shared.exchange_full + 8 * stage, 128);
    barrier_init(shared.exchange_empty + 8 * stage, 128);
  }
  for (int turn = 0; turn < kClusterTurns; ++turn) {
    barrier_init(shared.cluster_turns_full + 8 * turn, 1);
  }
  barrier_init_fence();
}

// After the barriers have been initialised by the block's first thread.
__device__ __forceinline__ void begin(const ForwardParams& params, const TensorMap& d_out_map) {
  if (threadIdx.x == 0) {
    prefetch_map(params.q_map);
    prefetch_map(params.k_map);
    prefetch_map(params.v_map);
    prefetch_map(d_out_map);
  }
  __syncthreads();
}
// And initialises them.
__device__ __forceinline__ void begin(const SharedLayout& shared, const ForwardParams& params,
                                      const TensorMap& d_out_map) {
  if (threadIdx.x == 0) {
    init_barriers(shared);
  }
  begin(params, d_out_map);
}

// For consumers: the number of a turn's tile of rows, or kNoRows, when the rows are there.
__device__ __forceinline__ int wait_for_rows(const SharedLayout& shared, u32 turn) {
  barrier_wait(shared.rows_full, turn % 2);
  return load_shared_once(shared.row_tiles + 4 * (turn % 2));
}

// One arrival a warp. All lanes' reads come before it.
__device__ __forceinline__ void release(u32 barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    barrier_arrive(barrier);
  }
}

// A row's place among the rows' statistics: its lse; its delta comes `tiles.rows` further.
__device__ __forceinline__ float* row_statistics(const ForwardParams& params, const RowTiles& tiles, int b, int h,
                                                 int q) {
  const long long tile = (static_cast<long long>(b) * params.q_heads + h) * tiles.tiles + q / tiles.rows;
  return tiles.statistics + tile * 2 * tiles.rows + q % tiles.rows;
}

}  // namespace flashlift::cuda
