// The producer warp of the Hopper backward kernels.
#pragma once

#include "cuda/kernels/common/query_tiles.cuh"
#include "cuda/kernels/sm90/backward_pipeline.cuh"

namespace flashlift::cuda {

struct ColumnTile {
  bool exists = false;
  int h = 0;      // of its queries
  int first = 0;  // column
  bool partial = false;
};

// Column tiles of the kernel whose rows are queries: of keys, those that the mask cuts through first.
class KeyColumns {
 public:
  __device__ __forceinline__ KeyColumns(const ForwardParams& params, const QueryTile& tile)
      : tile_(tile), visits_(find_visits(params, tile_)), iterator_(params, tile_, visits_), partial_left_(visits_.partial) {}

  __device__ __forceinline__ ColumnTile next() {
    if (visits_.partial + visits_.full == count_) {
      return {};
    }
    ++count_;
    const int kv_tile = iterator_.next();
    return {true, tile_.h, kv_tile * FL_BLOCK_N, partial_left_-- > 0};
  }

 private:
  const QueryTile tile_;
  const Visits visits_;
  VisitIterator iterator_;
  int partial_left_;
  int count_ = 0;
};

// Those of the kernel whose rows are keys: of the queries of all heads that share them.
class QueryColumns {
 public:
  __device__ __forceinline__ QueryColumns(const ForwardParams& params, const KeyTile& keys)
      : keys_(keys), tiles_(params, keys_) {}

  __device__ __forceinline__ ColumnTile next() {
    const QueryTiles::Tile tile = tiles_.next();
    return {tile.h >= 0, tile.h, tile.q, tile.partial};
  }

 private:
  const KeyTile keys_;
  QueryTiles tiles_;
};

// Copies of the statistics of one tile of queries.
__device__ __forceinline__ void load_bytes(u32 destination, const void* source, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

struct Producer {
  const ForwardParams& params;
  const RowTiles& tiles;
  const TensorMap& d_out_map;
  const SharedLayout& shared;
  const int b;
  const int kv_head;
  ColumnRing ring;

  __device__ __forceinline__ bool leads() const { return threadIdx.x % 32 == 0; }

  // The block's own: Q and d_out of head h, or K and V.
  __device__ __forceinline__ void load_rows(int h, int first) const {
    if (!leads()) {
      return;
    }
    const TensorMap& qk_map = kRowsAreKeys ? params.k_map : params.q_map;
    const TensorMap& v_map = kRowsAreKeys ? params.v_map : d_out_map;
    const int head = kRowsAreKeys ? kv_head : h;
    barrier_arrive_expect(shared.rows_full, kConsumers * (kRowQkBytes + kRowVBytes));
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kConsumers; ++warpgroup) {
      const int row = first + 64 * warpgroup;
#pragma unroll
      for (int box = 0; box < kQkBoxes; ++box) {
        load_box(shared.rows_qk + warpgroup * kRowQkBytes + box * kRowBoxBytes, qk_map, shared.rows_full, box * 64, row,
                 head, b);
      }
#pragma unroll
      for (int box = 0; box < kVBoxes; ++box) {
        load_box(shared.rows_v + warpgroup * kRowVBytes + box * kRowBoxBytes, v_map, shared.rows_full, box * 64, row,
                 head, b);
      }
    }
  }

  template <int kBoxes>
  __device__ __forceinline__ void load_column_boxes(u32 destination, const TensorMap& map, u32 barrier, int first,
                                                    int head) const {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
#pragma unroll
      for (int row = 0; row < FL_BLOCK_N; row += kBoxRows) {
        load_box(destination + box * kColumnBoxBytes + row * 128, map, barrier, box * 64, first + row, head, b);
      }
    }
  }

  __device__ __forceinline__ void load_columns(const ColumnTile& tile, bool last) {
    barrier_wait(shared.empty + 8 * ring.stage, ring.phase ^ 1);
    if (leads()) {
      const u32 fields = shared.fields + 4 * kFieldCount * ring.stage;
      store_shared(fields + 4 * kFieldFirst, tile.first);
      store_shared(fields + 4 * kFieldHead, tile.h);
      store_shared(fields + 4 * kFieldFlags, (tile.partial ? kPartial : 0) | (last ? kLast : 0));
      const u32 barrier = shared.full + 8 * ring.stage;
      const int head = kRowsAreKeys ? tile.h : kv_head;
      barrier_arrive_expect(barrier, kColumnQkBytes + kColumnVBytes + kStatisticsBytes);
      load_column_boxes<kQkBoxes>(shared.columns_qk + ring.stage * kColumnQkBytes,
                                  kRowsAreKeys ? params.q_map : params.k_map, barrier, tile.first, head);
      load_column_boxes<kVBoxes>(shared.columns_v + ring.stage * kColumnVBytes, kRowsAreKeys ? d_out_map : params.v_map,
                                 barrier, tile.first, head);
      if (kRowsAreKeys) {
        load_bytes(shared.statistics + ring.stage * kStatisticsBytes,
                   row_statistics(params, tiles, b, tile.h, tile.first), kStatisticsBytes, barrier);
      }
    }
    ring.advance();
  }

  // `nothing`: what stands for no columns at all, since consumers know no tile of rows without columns.
  template <typename Columns>
  __device__ __forceinline__ void load_all(Columns columns, const ColumnTile& nothing) {
    ColumnTile tile = columns.next();
    if (!tile.exists) {
      load_columns(nothing, true);
      return;
    }
#pragma unroll 1
    while (tile.exists) {
      const ColumnTile next = columns.next();
      load_columns(tile, !next.exists);
      tile = next;
    }
  }
};

}  // namespace flashlift::cuda
