// The producer warp of the Hopper forward kernel: chooses tiles, evaluates the mask over intervals and keeps the bulk
// copies running ahead of the consumers.
#pragma once

#include "scheduler.cuh"
#include "sm90_pipeline.cuh"

namespace flashlift::cuda {

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
    barrier_wait(shared.k_empty + 8 * ring.stage, ring.phase ^ 1);
    if (leads()) {
      const u32 barrier = shared.k_full + 8 * ring.stage;
      store_shared(shared.kv_tile + 4 * ring.stage, kv_tile);
      barrier_arrive_expect(barrier, kKBytes);
#pragma unroll
      for (int box = 0; box < kQkBoxes; ++box) {
        load_box(shared.k + ring.stage * kKBytes + box * kKvBoxBytes, params.k_map, barrier, box * 64,
                 kv_tile * FL_BLOCK_N, tile.h / params.group, tile.b);
      }
    }
  }

  __device__ __forceinline__ void load_v(const QueryTile& tile, int kv_tile, const RingPosition& at) {
    barrier_wait(shared.v_empty + 8 * at.stage, at.phase ^ 1);
    if (leads()) {
      const u32 barrier = shared.v_full + 8 * at.stage;
      barrier_arrive_expect(barrier, kVBytes);
#pragma unroll
      for (int box = 0; box < kVBoxes; ++box) {
        load_box(shared.v + at.stage * kVBytes + box * kKvBoxBytes, params.v_map, barrier, box * 64,
                 kv_tile * FL_BLOCK_N, tile.h / params.group, tile.b);
      }
    }
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
        next = gridDim.x + atomicAdd(params.scheduler, 1);
      }
      load_tile(query_tile(params, index));
      index = __shfl_sync(0xffffffff, next, 0);
    }
    load_q({0, 0, 0}, 0, kNoMoreTiles);
    if (leads()) {
      // The last block leaves the counters at zero for the next launch.
      __threadfence();
      if (atomicAdd(params.scheduler + 1, 1) == gridDim.x - 1) {
        params.scheduler[0] = 0;
        params.scheduler[1] = 0;
      }
    }
  }
};

}  // namespace flashlift::cuda
