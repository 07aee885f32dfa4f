// The producer warp of the Hopper backward kernels.
#pragma once

#include "cuda/kernels/common/key_tiles.cuh"
#include "cuda/kernels/sm90/backward_pipeline.cuh"
#include "cuda/kernels/sm90/key_rings.cuh"

namespace flashlift::cuda {

// The block's own rows, of queries or of keys.
struct BlockRows {
  int b;
  int h, last_h;  // query heads: one, or all that share the keys
  int first, last;
  bool mirrored = false;  // of the fused kernel: as KeyTile::mirrored
};

struct ColumnTile {
  bool exists = false;
  int h = 0;      // of its queries
  int first = 0;  // column
  int flags = 0;  // kPartial, kPlain
  // Of the fused kernel: the key tile that comes before the block's sees it, too; so does the one that comes behind.
  bool follows = false;
  bool precedes = false;
};

// How much further on the key tile is that comes behind one of the fused kernel. (A constant takes no register.)
__device__ __forceinline__ int key_tile_step(bool mirrored) { return FL_MIRRORS && mirrored ? -1 : 1; }

// Of the fused kernel: is there such a key tile, and does it see a tile of queries?
__device__ __forceinline__ bool sees(const ForwardParams& params, int b, int h, int first_query, int first_key) {
  return first_key >= 0 && first_key < params.kv_len &&
         classify_scores(params, b, h, first_query, min(first_query + FL_BLOCK_N, params.q_len) - 1, first_key,
                         min(first_key + FL_BLOCK_M, params.kv_len) - 1, true) != kTileSkipped;
}

// The column tiles that the rows see. A warp classifies 32 tiles at a time. If there are more, it first classifies 32
// runs of tiles, since a mask often keeps little of a long sequence, and the consumers wait for the first tile. In the
// fused kernel the last columns come first, unless the head is mirrored, and no tile is skipped with its run: other blocks
// classify each tile alone, and must get the same result.
//
// Query heads that share the keys come one after the other. With FL_HEADS_TAKE_TURNS, a tile comes for all of them before
// the next tile does. Under a causal mask and within documents, a key tile sees fewer queries than the one before: head
// by head, it would get closer to that one, and wait for it. In a sliding window, each key tile begins with later queries
// than the one before, and turns would let too many queries be in use for the L2 cache.
class ColumnTiles {
 public:
  __device__ __forceinline__ ColumnTiles(const ForwardParams& params, const BlockRows& rows)
      : params_(params),
        rows_(rows),
        columns_(kRowsAreKeys ? params.q_len : params.kv_len),
        tiles_((columns_ + FL_BLOCK_N - 1) / FL_BLOCK_N),
        run_(FL_FUSED ? 1 : max(min((tiles_ + 31) / 32, 32), 1)),
        head_(rows.h) {}

  __device__ __forceinline__ ColumnTile next() {
    while (hits_ == 0) {
      if (runs_ != 0) {
        look_into_runs();
      } else if (next_ < tiles_) {
        look_for_runs();
      } else if (!FL_HEADS_TAKE_TURNS && head_ < rows_.last_h) {
        ++head_;
        next_ = 0;
      } else {
        return {};
      }
    }
    const int bit = __ffs(hits_) - 1;
    const int tile = base_ + bit;
    const int head = head_;
    if (FL_HEADS_TAKE_TURNS && head < rows_.last_h) {
      ++head_;
    } else {
      head_ = FL_HEADS_TAKE_TURNS ? rows_.h : head;
      hits_ &= hits_ - 1;
    }
    return {true,
            head,
            first_column(tile),
            ((partial_ >> bit & 1) != 0 ? kPartial : 0) | ((plain_ >> bit & 1) != 0 ? kPlain : 0),
            (follows_ >> bit & 1) != 0,
            (precedes_ >> bit & 1) != 0};
  }

 private:
  // Of a tile, by its place in the order of the tiles.
  __device__ __forceinline__ int first_column(int tile) const {
    return (FL_FUSED && !(FL_MIRRORS && rows_.mirrored) ? tiles_ - 1 - tile : tile) * FL_BLOCK_N;
  }

  // Of `count` tiles from `tile` on.
  __device__ __forceinline__ TileKind classify(int tile, int count) const {
    const int first = first_column(tile);
    if (first >= columns_ || first < 0) {
      return kTileSkipped;
    }
    const int last = min(first + count * FL_BLOCK_N, columns_) - 1;
    // Rows that do not exist only spoil their own gradients, except in the fused kernel: d_q is a sum over them.
    const bool rows_exist = !FL_FUSED || rows_.last - rows_.first == FL_BLOCK_M - 1;
    return classify_scores(params_, rows_.b, head_, kRowsAreKeys ? first : rows_.first, kRowsAreKeys ? last : rows_.last,
                           kRowsAreKeys ? rows_.first : first, kRowsAreKeys ? rows_.last : last,
                           rows_exist && last - first == count * FL_BLOCK_N - 1);
  }

  __device__ __forceinline__ void remember_partial(TileKind kind) {
    partial_ = __ballot_sync(0xffffffff, is_partial(kind));
    if (FL_HAS_PLAIN_MASK) {
      plain_ = __ballot_sync(0xffffffff, kind == kTilePlain);
    }
  }

  __device__ __forceinline__ void look_for_runs() {
    const int tile = next_ + static_cast<int>(threadIdx.x % 32) * run_;
    const TileKind kind = classify(tile, run_);
    const u32 hits = __ballot_sync(0xffffffff, kind != kTileSkipped);
    base_ = next_;
    next_ += 32 * run_;
    if (run_ == 1) {
      hits_ = hits;
      remember_partial(kind);
#if FL_FUSED
      const int step = key_tile_step(rows_.mirrored) * FL_BLOCK_M;
      const auto is_seen_by = [&](int first_key) {
        return kind != kTileSkipped && sees(params_, rows_.b, head_, first_column(tile), first_key);
      };
      follows_ = __ballot_sync(0xffffffff, is_seen_by(rows_.first - step));
      if (kStoresFinal) {
        precedes_ = __ballot_sync(0xffffffff, is_seen_by(rows_.first + step));
      }
#endif
    } else {
      runs_ = hits;
      first_run_ = base_;
    }
  }

  __device__ __forceinline__ void look_into_runs() {
    const int run = __ffs(runs_) - 1;
    const int together = 32 / run_;
    const int lane = static_cast<int>(threadIdx.x % 32);
    base_ = first_run_ + run * run_;
    const TileKind kind = lane < together * run_ ? classify(base_ + lane, 1) : kTileSkipped;
    hits_ = __ballot_sync(0xffffffff, kind != kTileSkipped);
    remember_partial(kind);
    const u32 looked_into = (together < 32 ? (1u << together) - 1 : 0xffffffff) << run;
    runs_ &= ~looked_into;
  }

  const ForwardParams& params_;
  const BlockRows rows_;
  const int columns_;
  const int tiles_;
  const int run_;  // tiles of a run
  int head_;
  int next_ = 0;  // tile that no run has been looked for from
  int first_run_ = 0;
  u32 runs_ = 0;  // that are still to be looked into
  int base_ = 0;  // tile of the first bit
  u32 hits_ = 0;
  u32 partial_ = 0;
  u32 plain_ = 0;
  u32 follows_ = 0;
  u32 precedes_ = 0;
};

// Copies contiguous bytes, which count towards `barrier`.
__device__ __forceinline__ void load_bytes(u32 destination, const void* source, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

constexpr int kUnrolledRowBoxes = kRowBoxColumns == 64 ? 4 : 1;  // narrow ones are many, and registers few

struct Producer {
  const ForwardParams& params;
  const RowTiles& tiles;
  const TensorMap& d_out_map;
  const SharedLayout& shared;
  int b;
  int kv_head;
#if FL_FUSED
  const BackwardParams& backward;
  bool mirrored = false;  // as KeyTile::mirrored
#endif
  ColumnRings rings;
  int visit = 0;

  // (With elect_one(), the fused kernel's tiles of 128 queries take a tenth longer in rings, for an unknown reason, and separate
  // kernels spill more.)
  __device__ __forceinline__ bool leads() const {
    return FL_FUSED && FL_BLOCK_N <= 64 ? elect_one() : threadIdx.x % 32 == 0;
  }

  // What the leading thread has; the others have 0, and it is not negative.
  __device__ __forceinline__ int from_leader(int value) const { return __reduce_max_sync(0xffffffff, value); }

  // Takes the number of a tile of rows from a counter.
  __device__ __forceinline__ int take(int* counter) const {
    int index = 0;
    if (leads()) {
      index = atomicAdd(counter, 1);
    }
    return from_leader(index);
  }

  // `policy`: none, or how long the L2 cache should keep them.
  template <int kBoxes, typename... Policy>
  __device__ __forceinline__ void load_row_boxes(u32 destination, const TensorMap& map, u32 barrier, int first,
                                                 int head, Policy... policy) const {
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kRowWarpgroups; ++warpgroup) {
#pragma unroll(kUnrolledRowBoxes)
      for (int box = 0; box < kBoxes; ++box) {
        load_box(destination + (warpgroup * kBoxes + box) * kRowBoxBytes, map, barrier, box * kRowBoxColumns,
                 first + 64 * warpgroup, head, b, policy...);
      }
    }
  }

#if FL_FUSED
  // The block's own keys, and their values, which count towards the first tile's d_out. No other block reads them.
  __device__ __forceinline__ void load_keys(u32 stage, int number, int first) const {
    if (leads()) {
      const u32 fields = shared.key_tile + 4 * kKeyFieldCount * stage;
      store_shared(fields + 4 * kKeyNumber, number);
      store_shared(fields + 4 * kKeyBatch, b);
      store_shared(fields + 4 * kKeyHead, kv_head);
      store_shared(fields + 4 * kKeyFirst, first);
      const u32 barrier = shared.rows_full + 8 * stage;
      barrier_arrive_expect(barrier, kRowsQkBytes + kOtherKeysBytes);
      load_row_boxes<kRowQkBoxes>(shared.rows_qk + stage * kRowsQkBytes, params.k_map, barrier, first, kv_head,
                                  evict_first_policy());
    }
  }
  // By roles: what this block's part of d_q needs of the other block's keys.
  __device__ __forceinline__ void load_other_keys(int first, int first_column) const {
    if (leads()) {
#pragma unroll 1
      for (u32 box = 0; box < kOtherKeysBytes / kRowBoxBytes; ++box) {
        load_box(shared.other_keys + box * kRowBoxBytes, params.k_map, shared.rows_full,
                 first_column + static_cast<int>(box) * kRowBoxColumns, first, kv_head, b, evict_first_policy());
      }
    }
  }
  __device__ __forceinline__ void load_values(int first, u32 stage) const {
    if (leads()) {
      load_row_boxes<kRowVBoxes>(shared.rows_v, params.v_map, shared.v_full + 8 * stage, first, kv_head,
                                 evict_first_policy());
    }
  }

#else
  // The block's own Q and statistics of head h, or K.
  __device__ __forceinline__ void load_qk_rows(int h, int first, u32 more_bytes = 0) const {
    if (!leads()) {
      return;
    }
    barrier_arrive_expect(shared.rows_full, kRowWarpgroups * kRowQkBytes + kRowStatisticsBytes + more_bytes);
    load_row_boxes<kRowQkBoxes>(shared.rows_qk, kRowsAreKeys ? params.k_map : params.q_map, shared.rows_full, first,
                             kRowsAreKeys ? kv_head : h);
    if (kRowStatisticsBytes > 0) {
      load_bytes(shared.row_statistics, row_statistics(params, tiles, b, h, first), kRowStatisticsBytes,
                 shared.rows_full);
    }
  }
  // And its d_out, or V.
  __device__ __forceinline__ void load_v_rows(int h, int first, u32 barrier) const {
    if (leads()) {
      load_row_boxes<kComputesDp ? kRowVBoxes : 0>(shared.rows_v, kRowsAreKeys ? params.v_map : d_out_map, barrier, first,
                                                kRowsAreKeys ? kv_head : h);
    }
  }
  __device__ __forceinline__ void load_rows(int h, int first) const {
    load_qk_rows(h, first, kBlockVBytes);
    load_v_rows(h, first, shared.rows_full);
  }

  // Hands the number of a turn's tile of rows to the consumers, when they no longer need the last turn's. They learn of
  // it with the rows.
  __device__ __forceinline__ void give_rows(u32 turn, int index) const {
    barrier_wait(shared.rows_empty, turn % 2 ^ 1);
    if (leads()) {
      store_shared(shared.row_tiles + 4 * (turn % 2), index);
    }
  }
  // No rows are left.
  __device__ __forceinline__ void end(u32 turn) const {
    give_rows(turn, kNoRows);
    if (leads()) {
      barrier_arrive(shared.rows_full);
    }
  }
#endif

  // Brings the block's next rows into the L2 cache.
  __device__ __forceinline__ void prefetch_rows(const TensorMap& qk_map, const TensorMap& v_map, int batch, int head,
                                                int first) const {
    if (leads()) {
#pragma unroll 1
      for (int row = first; row < first + kRowWarpgroups * kBoxRows; row += kBoxRows) {
#pragma unroll(kUnrolledRowBoxes)
        for (int box = 0; box < kRowQkBoxes; ++box) {
          prefetch_box(qk_map, box * kRowBoxColumns, row, head, batch);
        }
#pragma unroll(kUnrolledRowBoxes)
        for (int box = 0; box < (kComputesDp ? kRowVBoxes : 0); ++box) {
          prefetch_box(v_map, box * kRowBoxColumns, row, head, batch);
        }
      }
    }
  }

  template <int kBoxes>
  __device__ __forceinline__ void load_column_boxes(u32 destination, const TensorMap& map, u32 barrier, int first,
                                                    int head) const {
    if constexpr (kSharesLoads) {
      // Each block of the cluster loads every other box for both.
#pragma unroll 1
      for (int box = static_cast<int>(cluster_rank()); box < kBoxes; box += 2) {
        load_box_for_both(destination + box * kColumnBoxBytes, map, barrier, box * 64, first, head, b);
      }
      return;
    }
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
      for (int row = 0; row < FL_BLOCK_N; row += kBoxRows) {
        load_box(destination + box * kColumnBoxBytes + row * 128, map, barrier, box * 64, first + row, head, b);
      }
    }
  }

#if FL_FUSED
  // (Registers are too few to keep it.)
  __device__ __forceinline__ KeyRing ring() const {
    return {load_shared(shared.ring + 4 * kRingFirst), load_shared(shared.ring + 4 * kRingSize),
            load_shared(shared.ring + 4 * kRingPlace), ring_distance(backward)};
  }
  __device__ __forceinline__ int last_step() const { return (params.q_len - 1) / FL_BLOCK_N; }

  __device__ __forceinline__ bool is_key_tile(int tile) const {
    return tile >= 0 && tile * FL_BLOCK_M < params.kv_len;
  }
  __device__ __forceinline__ bool is_seen_by(int key_tile, const ColumnTile& tile) const {
    return sees(params, b, tile.h, tile.first, key_tile * FL_BLOCK_M);
  }

  // A tile of d_q among those of all heads. (Here, RowTiles::rows is FL_BLOCK_N.)
  __device__ __forceinline__ int place(const ColumnTile& tile) const {
    return (b * params.q_heads + tile.h) * tiles.tiles + static_cast<int>(static_cast<u32>(tile.first) / FL_BLOCK_N);
  }

  // The key tile that adds to the same d_q before this one, or -1.
  __device__ __forceinline__ int previous_keys(int key_tile, const ColumnTile& tile) const {
    const int step = key_tile_step(mirrored);
    if (tile.follows) {
      return key_tile - step;
    }
#pragma unroll 1
    for (int nearest = key_tile - 2 * step; is_key_tile(nearest); nearest -= 32 * step) {
      const u32 hits = __ballot_sync(0xffffffff, is_seen_by(nearest - step * static_cast<int>(threadIdx.x % 32), tile));
      if (hits != 0) {
        return nearest - step * (__ffs(hits) - 1);
      }
    }
    return -1;
  }

  // Does no key tile behind this one add to the same d_q?
  __device__ __forceinline__ bool is_final(int key_tile, const ColumnTile& tile) const {
    if (tile.precedes) {
      return false;
    }
#if FL_HAS_MASK_MOD || FL_SCORE_MASKS
    const int step = key_tile_step(mirrored);
#pragma unroll 1
    for (int nearest = key_tile + 2 * step; is_key_tile(nearest); nearest += 32 * step) {
      if (__any_sync(0xffffffff, is_seen_by(nearest + step * static_cast<int>(threadIdx.x % 32), tile))) {
        return false;
      }
    }
#endif
    return true;
  }

  // For the warps that add parts of d_q up: where a visit's part is, and which key tile adds to it before.
  __device__ __forceinline__ void tell_place(const ColumnTile& tile, int key_tile, bool nothing, int at) const {
    const int before = nothing ? -1 : previous_keys(key_tile, tile);
    if (leads()) {
      const u32 address = shared.visits + 4 * kVisitFieldCount * (at % kVisitStages);
      store_shared(address + 4 * kVisitTile, place(tile));
      store_shared(address + 4 * kVisitBefore, before);
    }
  }

  // And the rest. A key tile's first part is never final: those warps must know of a final one before the consumers have
  // it.
  __device__ __forceinline__ void tell_visit(const ColumnTile& tile, int key_tile, int flags) {
    if (!FL_ROLES) {
      tell_place(tile, key_tile, (flags & kNothing) != 0, visit);
    }
    if (kStoresFinal && backward.stores_final != 0 && (flags & (kFirst | kNothing)) == 0 &&
        is_final(key_tile, tile)) {
      flags |= kFinal;
    }
    if (leads()) {
      const u32 address = shared.visits + 4 * kVisitFieldCount * (visit % kVisitStages);
      store_shared(address + 4 * kVisitFlags, flags);
      store_shared(address + 4 * kVisitKeys, key_tile);
    }
    ++visit;
  }

  // No key tile is left.
  __device__ __forceinline__ void end(u32 stage) const {
    if (leads()) {
      store_shared(shared.visits + 4 * kVisitFieldCount * (visit % kVisitStages) + 4 * kVisitKeys, kNoKeys);
      store_shared(shared.key_tile + 4 * (kKeyFieldCount * stage + kKeyNumber), kNoKeys);
      barrier_arrive(shared.rows_full + 8 * stage);
    }
  }
#endif

  __device__ __forceinline__ void wait_for_consumers(u32 barrier, u32 parity) const {
    if constexpr (kSharesLoads) {
      cluster_barrier_wait(barrier, parity);
    } else {
      barrier_wait(barrier, parity);
    }
  }

  // One thread: the first half of a tile, when its stage is free.
  __device__ __forceinline__ void load_qk_columns(const ColumnTile& tile, int flags) const {
    const u32 fields = shared.fields + 4 * kFieldCount * rings.qk.stage();
    store_shared(fields + 4 * kFieldFirst, tile.first);
    store_shared(fields + 4 * kFieldHead, tile.h);
    store_shared(fields + 4 * kFieldFlags, flags);
    const u32 barrier = shared.qk_full + 8 * rings.qk.stage();
    barrier_arrive_expect(barrier, kColumnQkBytes + (kStatisticsWithV ? 0 : kStatisticsBytes));
    load_column_boxes<kQkBoxes>(shared.columns_qk + rings.qk.stage() * kColumnQkBytes,
                                kRowsAreKeys ? params.q_map : params.k_map, barrier, tile.first,
                                kRowsAreKeys ? tile.h : kv_head);
    if (!kStatisticsWithV) {
      load_statistics(tile, rings.qk.stage(), barrier);
    }
  }
  // The statistics of a tile's columns, if they have any.
  __device__ __forceinline__ void load_statistics(const ColumnTile& tile, u32 stage, u32 barrier) const {
    if (kStatisticsBytes > 0) {
#if FL_FUSED && (FL_RINGS || FL_MASK_LOADS || FL_SCORE_LOADS)
      // (As below, but without divisions. In other kernels, ptxas would keep the tile's number, and spill.)
      const float* const statistics = tiles.statistics + static_cast<long long>(place(tile)) * (2 * FL_BLOCK_N);
#else
      const float* const statistics = row_statistics(params, tiles, b, tile.h, tile.first);
#endif
      load_bytes(shared.statistics + stage * kStatisticsBytes, statistics, kStatisticsBytes, barrier);
    }
  }
  // And the second. v_bytes: of what counts towards its barrier in addition.
  __device__ __forceinline__ void load_v_columns(const ColumnTile& tile, u32 v_bytes) const {
    const u32 barrier = shared.v_full + 8 * rings.v_stage();
    barrier_arrive_expect(barrier, kColumnVBytes + v_bytes + (kStatisticsWithV ? kStatisticsBytes : 0));
    load_column_boxes<kVBoxes>(shared.columns_v + rings.v_stage() * kColumnVBytes,
                               kRowsAreKeys ? d_out_map : params.v_map, barrier, tile.first,
                               kRowsAreKeys ? tile.h : kv_head);
    if (kStatisticsWithV) {
      load_statistics(tile, rings.v_stage(), barrier);
    }
  }

  // behind_qk(): called between the loads of the tile's two halves. v_bytes: of what counts towards the second's barrier
  // in addition.
  template <typename BehindQk>
  __device__ __forceinline__ void load_columns(const ColumnTile& tile, int key_tile, int flags, u32 v_bytes,
                                               const BehindQk& behind_qk) {
    wait_for_consumers(shared.qk_empty + 8 * rings.qk.stage(), rings.qk.phase() ^ 1);
#if FL_FUSED
    tell_visit(tile, key_tile, flags);
#endif
    if (leads()) {
      load_qk_columns(tile, flags);
    }
    behind_qk();
    wait_for_consumers(shared.v_empty + 8 * rings.v_stage(), rings.v_phase() ^ 1);
    if (leads()) {
      load_v_columns(tile, v_bytes);
    }
    rings.advance();
  }

  // `nothing`: what stands for no columns at all, since consumers know no tile of rows without columns. Calls
  // behind_qk() and behind_v(rings) when the halves of the first columns have been asked for, with what they lie in.
  // v_bytes: of rows that behind_v loads and that count towards the second half's barrier.
  template <typename BehindQk, typename BehindV>
  __device__ __forceinline__ void load_all(const BlockRows& rows, const ColumnTile& nothing, u32 v_bytes,
                                           const BehindQk& behind_qk, const BehindV& behind_v) {
    ColumnTiles columns(params, rows);
    ColumnTile tile = columns.next();
    const int key_tile = rows.first / FL_BLOCK_M;
    int flags = kFirst;
    if (!tile.exists) {
      tile = nothing;
      flags |= kPartial | kLast | kNothing;
    }
#if FL_FUSED && FL_ROLES
    tell_place(tile, key_tile, (flags & kNothing) != 0, visit);
#endif
#pragma unroll 1
    while (tile.exists) {
      const ColumnTile next = columns.next();
#if FL_FUSED && FL_ROLES
      // While a warp adds a part, it looks whether it is the next one's turn. By roles, the producer may not have come to the
      // next tile by then, and so tells of its place a tile early.
      if (next.exists) {
        tell_place(next, key_tile, false, visit + 1);
      }
#endif
      const ColumnRings at = rings;
      const bool first = (flags & kFirst) != 0;
      load_columns(tile, key_tile, tile.flags | flags | (next.exists ? 0 : kLast), first ? v_bytes : 0, [&] {
        if (first) {
          behind_qk();
        }
      });
      if (first) {
        behind_v(at);
      }
      tile = next;
      flags = 0;
    }
  }
#if FL_FUSED
  // Behind the first part of a key tile: does its ring stay together? All of its key tiles get the same answer: it does if
  // blocks take all of them soon.
  __device__ __forceinline__ bool ring_stays_together() const {
    int decision = kNotDecided;
    if (leads()) {
      const int end = load_shared(shared.ring + 4 * kRingEnd);
      int* const place = tiles.left_keys + key_tile_count(params, backward) + end - 1;
      // A load takes some 700 cycles, and a tile 4,000: other rings come to their end meanwhile.
      constexpr int kLoadsPerTile = 12;
      int loads = min(params.q_len / FL_BLOCK_N + 16, 1 << 16) * kLoadsPerTile * params.group;
      do {
        const bool taken = load_relaxed(tiles.next_block) >= end;
        if (taken || --loads == 0) {
          const int mine = taken ? kTogether : kApart;
          const int earlier = atomicCAS(place, static_cast<int>(kNotDecided), mine);
          decision = earlier == kNotDecided ? mine : earlier;
        } else {
          decision = load_relaxed(place);
        }
      } while (decision == kNotDecided);
    }
    return from_leader(decision) == kTogether;
  }

  // How many parts of its key tile were added before the block resumed it, or a negative number if it does not resume it.
  __device__ __forceinline__ int added_parts() const { return -load_shared(shared.ring + 4 * kRingEnd); }

  // As load_all(): a key tile of a ring sees all queries, those of one head after the other. Where it continues at the last
  // queries, the block may leave it (key_rings.cuh). Returns how many parts have been added by then, and 0 at the end.
  template <typename BehindV>
  __device__ __forceinline__ int load_ring(const BlockRows& rows, u32 v_bytes, const BehindV& behind_v) {
    const int key_tile = rows.first / FL_BLOCK_M;
    int step = ring().start();
    int further_steps = last_step();  // of the head
    int h = rows.h;
    int flags = kFirst | (added_parts() > 0 ? kNothing : 0);
#pragma unroll 1
    while (true) {
      const ColumnTile tile{true, h, (last_step() - step) * FL_BLOCK_N};
      if (further_steps == 0 && h == rows.last_h) {
        flags |= kLast;
      } else if (step == last_step() && (flags & (kNothing | kStaysTogether)) == 0) {
        flags |= added_parts() < 0 && ring_stays_together() ? kStaysTogether : kLeaves | kLast;
      }
      if (rows.first + FL_BLOCK_M > params.kv_len || tile.first + FL_BLOCK_N > params.q_len) {
        flags |= kPartial;
      }
      const KeyRing place_in_ring = ring();
      const bool nothing = (flags & kNothing) != 0;
      const int before = nothing ? -1 : place_in_ring.previous(backward.ring_tiles, step);
      const bool is_final = kStoresFinal && backward.stores_final != 0 && (flags & kFirst) == 0 && !nothing &&
                            place_in_ring.is_final(backward.kv_tiles, step);
      barrier_wait(shared.qk_empty + 8 * rings.qk.stage(), rings.qk.phase() ^ 1);
      if (leads()) {
        load_qk_columns(tile, flags);
        const u32 address = shared.visits + 4 * kVisitFieldCount * (visit % kVisitStages);
        store_shared(address + 4 * kVisitTile, place(tile));
        store_shared(address + 4 * kVisitBefore, before);
        store_shared(address + 4 * kVisitFlags, flags | (is_final ? kFinal : 0));
        store_shared(address + 4 * kVisitKeys, key_tile);
      }
      ++visit;
      barrier_wait(shared.v_empty + 8 * rings.v_stage(), rings.v_phase() ^ 1);
      if (leads()) {
        load_v_columns(tile, (flags & kFirst) != 0 ? v_bytes : 0);
      }
      const ColumnRings at = rings;
      rings.advance();
      if ((flags & kFirst) != 0) {
        behind_v(at);
      }
      if ((flags & kLast) != 0) {
        return (flags & kLeaves) != 0 ? h - rows.h + 1 : 0;
      }
      flags &= kNothing | kStaysTogether;
      ++step;
      if (step > last_step()) {
        step = 0;
        if (h - rows.h + 1 == added_parts()) {
          flags &= ~kNothing;
        }
      }
      --further_steps;
      if (further_steps < 0) {
        further_steps = last_step();
        ++h;
      }
    }
  }
#endif

  // With rows that the block has already.
  __device__ __forceinline__ void load_all(const BlockRows& rows, const ColumnTile& nothing) {
    load_all(rows, nothing, 0, [] {}, [](const ColumnRings&) {});
  }
};

}  // namespace flashlift::cuda
