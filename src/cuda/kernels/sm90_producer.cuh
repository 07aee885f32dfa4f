// The producer warp of the Hopper forward kernel: chooses tiles, evaluates the mask over intervals and keeps the bulk
// copies running ahead of the consumers.
#pragma once

#include "keys.cuh"
#include "scheduler.cuh"
#include "sm90_pipeline.cuh"

namespace flashlift::cuda {

// Keys that one copy brings: all of a tile, or a piece that lies in one page.
constexpr int kPieceKeys = FL_PAGE_SIZE > 0 ? FL_PAGE_PIECE : FL_BLOCK_N;
constexpr int kPieces = FL_BLOCK_N / kPieceKeys;
static_assert(kPieces <= 32 && kPieceKeys % 8 == 0, "a lane a piece, whole swizzled groups of rows");
constexpr int kNoPage = 1 << 30;  // beyond all pages: such copies read zeros

struct Producer {
  const ForwardParams& params;
  const SharedLayout& shared;
  RingPosition ring;
  u32 q_phase = 0;

  __device__ __forceinline__ bool leads() const { return threadIdx.x % 32 == 0; }

  // Hands a query tile to every warpgroup, each as soon as it has done with its last one's Q.
  __device__ __forceinline__ void load_q(const QueryTile& tile, int partial, int visits) {
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kConsumers; ++warpgroup) {
      barrier_wait(shared.q_empty + 8 * warpgroup, q_phase ^ 1);
      if (leads()) {
        const u32 fields = shared.tile_fields + 4 * kFieldCount * warpgroup;
        const u32 barrier = shared.q_full + 8 * warpgroup;
        const int row = tile.row + 64 * warpgroup;
        store_shared(fields + 4 * kFieldBatch, tile.b);
        store_shared(fields + 4 * kFieldHead, tile.h);
        store_shared(fields + 4 * kFieldRow, row);
        store_shared(fields + 4 * kFieldPartial, partial);
        store_shared(fields + 4 * kFieldVisits, visits);
        if (visits > 0) {
          barrier_arrive_expect(barrier, kQBytes);
#pragma unroll
          for (int box = 0; box < kQkBoxes; ++box) {
            load_box(shared.q + warpgroup * kQBytes + box * kQBoxBytes, params.q_map, barrier, box * 64, row, tile.h,
                     tile.b);
          }
        } else {
          barrier_arrive(barrier);
        }
      }
    }
    q_phase ^= 1;
  }

  __device__ __forceinline__ void load_k(const QueryTile& tile, int kv_tile) {
    barrier_wait(shared.k_empty + 8 * ring.stage(), ring.phase() ^ 1);
    const u32 barrier = shared.k_full + 8 * ring.stage();
    if (leads()) {
      store_shared(shared.kv_tile + 4 * ring.stage(), kv_tile);
      barrier_arrive_expect(barrier, kKBytes);
    }
    load_keys<kQkBoxes>(shared.k + ring.stage() * kKBytes, params.k_map, barrier, tile, kv_tile);
  }

  // Pages are read in pieces, a lane each; without pages the leader reads all.
  template <int kBoxes>
  __device__ __forceinline__ void load_keys(u32 destination, const TensorMap& map, u32 barrier, const QueryTile& tile,
                                            int kv_tile) {
#if FL_PAGE_SIZE
    const int piece = threadIdx.x % 32;
    const int kv = kv_tile * FL_BLOCK_N + piece * kPieceKeys;
    __syncwarp();  // the barrier expects these bytes by now
    if (piece < kPieces) {
      const int page = kv < params.kv_len ? page_of_key(params, tile.b, kv) : kNoPage;
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        load_box(destination + box * kKvBoxBytes + piece * kPieceKeys * 128, map, barrier, box * 64, row_of_key(kv),
                 tile.h / params.group, page);
      }
    }
#else
    if (leads()) {
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        load_box(destination + box * kKvBoxBytes, map, barrier, box * 64, kv_tile * FL_BLOCK_N, tile.h / params.group,
                 tile.b);
      }
    }
#endif
  }

  __device__ __forceinline__ void load_v(const QueryTile& tile, int kv_tile, const RingPosition& at) {
    barrier_wait(shared.v_empty + 8 * at.stage(), at.phase() ^ 1);
    const u32 barrier = shared.v_full + 8 * at.stage();
    if (leads()) {
      barrier_arrive_expect(barrier, kVBytes);
    }
    load_keys<kVBoxes>(shared.v + at.stage() * kVBytes, params.v_map, barrier, tile, kv_tile);
  }

  // The order in which the consumers need them: K0 Q K1 V0 K2 V1 ... V(n-1).
  __device__ __forceinline__ void load_tile(const QueryTile& tile) {
    const Visits found = find_visits(params, tile);
    const int visits = found.partial + found.full;
    if (visits == 0) {
      load_q(tile, 0, 0);
      return;
    }
    VisitIterator iterator(params, tile, found);
    int previous_tile = 0;
    RingPosition previous;
#pragma unroll 1
    for (int i = 0; i < visits; ++i) {
      const int kv_tile = iterator.next();
      load_k(tile, kv_tile);
      if (i == 0) {
        load_q(tile, found.partial, visits);
      } else {
        load_v(tile, previous_tile, previous);
      }
      previous_tile = kv_tile;
      previous = ring;
      ring.advance();
    }
    load_v(tile, previous_tile, previous);
  }

  __device__ __forceinline__ void run() {
    int index = blockIdx.x;
    while (index < params.total_tiles) {
      int next = 0;
      if (leads()) {
        next = gridDim.x + atomicAdd(params.counters, 1);
      }
      load_tile(query_tile(params, index));
      index = __shfl_sync(0xffffffff, next, 0);
    }
    load_q(QueryTile(), 0, kNoMoreTiles);
    if (leads()) {
      // The last block leaves the counters at zero for the next launch.
      __threadfence();
      if (atomicAdd(params.counters + 1, 1) == gridDim.x - 1) {
        params.counters[0] = 0;
        params.counters[1] = 0;
      }
    }
  }
};

}  // namespace flashlift::cuda
