// The producer warp of the Hopper forward kernel, which issues the bulk copies ahead of the consumers; and the scout,
// which under a mask finds the key tiles of the next query tile in the meantime.
#pragma once

#include "cuda/kernels/sm90/pipeline.cuh"

namespace flashlift::cuda {

// The query tile after the block's current one; only the first lane gets it.
__device__ __forceinline__ int claim_tile(const ForwardParams& params) {
  int next = 0;
  if (threadIdx.x % 32 == 0) {
    next = gridDim.x + atomicAdd(params.counters, 1);
  }
  return next;
}

// The last block resets the counters to zero for the next launch.
__device__ __forceinline__ void stop_claiming(const ForwardParams& params) {
  if (threadIdx.x % 32 == 0) {
    __threadfence();
    if (atomicAdd(params.counters + 1, 1) == gridDim.x - 1) {
      params.counters[0] = 0;
      params.counters[1] = 0;
    }
  }
}

// Prefetches the tile's Q: it is read once, so that it is not in the L2 cache otherwise.
__device__ __forceinline__ void prefetch_q(const ForwardParams& params, const QueryTile& tile) {
#if FL_PREFETCH_Q
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int box = 0; box < kQkBoxes; ++box) {
#pragma unroll 1
      for (int warpgroup = 0; warpgroup < kConsumers; ++warpgroup) {
        prefetch_box(params.q_map, box * 64, tile.row + 64 * warpgroup, tile.h, tile.b);
      }
    }
  }
#endif
}

// Where the scout stores how many visits of a query tile a warpgroup skips. The producer may read this only when there is
// room for Q, and by then the scout may already be at the next tile.
__device__ __forceinline__ u32 skipped_address(const SharedLayout& shared, u32 tile, int warpgroup) {
  return shared.visits + 4 * (kVisitSkipped + tile % 2 * kConsumers + warpgroup);
}

// The scout is one query tile ahead of the producer, and claims it only when the producer has few loads left. A tile
// that is claimed early waits behind a long one, while another block may be idle (docs/lessons: 12 % of causal work).
struct Scout {
  const ForwardParams& params;
  const SharedLayout& shared;

  // The number of first visits of the query tile that the warpgroup may skip, because its own rows do not see them. (A
  // tile of all rows reaches beyond the diagonal by the rows of the other warpgroups.) One visit always stays, since
  // consumers support no query tile without one, and the skipped keys must be in the ring.
  __device__ __forceinline__ int skipped_visits(const QueryTile& tile, const Visits& found, int warpgroup) {
    if (tile.end_kv_tile - tile.first_kv_tile > 32) {
      return 0;
    }
    QueryTile rows = tile;
    rows.row += 64 * warpgroup;
    rows.last_row = min(rows.row + 63, params.q_len - 1);
    const bool seen = tile_kind(params, rows, tile.first_kv_tile + static_cast<int>(threadIdx.x % 32)) != kTileSkipped;
    const u32 partial = __shfl_sync(0xffffffff, found.partial_bits, 0);
    const u32 first = __ballot_sync(0xffffffff, seen) & partial;  // the highest is the first visit
    const int skipped = __popc(first != 0 ? partial >> (31 - __clz(first)) >> 1 : partial);
    return max(min(skipped, min(found.partial + found.full, kStages) - 1), 0);
  }

  __device__ __forceinline__ void tell(int tile, const Visits& found) {
    const int lane = threadIdx.x % 32;
    if (lane == 0) {
      store_shared(shared.visits + 4 * kVisitTile, tile);
      store_shared(shared.visits + 4 * kVisitPartial, found.partial);
      store_shared(shared.visits + 4 * kVisitFull, found.full);
    }
    store_shared(shared.visits + 4 * (kVisitPartialBits + lane), static_cast<int>(found.partial_bits));
    store_shared(shared.visits + 4 * (kVisitFullBits + lane), static_cast<int>(found.full_bits));
#if FL_SCORE_ZEROS
    store_shared(shared.visits + 4 * (kVisitZerosBits + lane), static_cast<int>(found.zeros_bits));
#endif
    barrier_arrive(shared.visits_full);
  }

  __device__ __forceinline__ void run() {
    u32 phase = 0;
#pragma unroll 1
    for (int index = blockIdx.x; index < params.total_tiles; index = __shfl_sync(0xffffffff, claim_tile(params), 0)) {
      const QueryTile tile = query_tile(params, index);
      const Visits found = find_visits(params, tile);
#if FL_SKIPS
#pragma unroll 1
      for (int warpgroup = 0; warpgroup < kConsumers; ++warpgroup) {
        store_shared(skipped_address(shared, phase, warpgroup), skipped_visits(tile, found, warpgroup));
      }
#endif
      tell(index, found);
      prefetch_q(params, tile);
      barrier_wait(shared.visits_empty, phase);
      phase ^= 1;
    }
    tell(kNoMoreTiles, Visits());
    stop_claiming(params);
  }
};

// While this many key tiles are still to be loaded, the scout finds the next query tile's visits.
constexpr int kLoadsLeft = 4;

struct Producer {
  const ForwardParams& params;
  const SharedLayout& shared;
  RingPosition ring;
  u32 tiles = 0;  // query tiles handed out
  int next = 0;   // without a scout: the next query tile, known to the first lane

  __device__ __forceinline__ bool leads() const { return elect_one(); }

  // Hands a query tile to every warpgroup, each as soon as the warpgroup is done with the Q of its last one.
  __device__ __forceinline__ void load_q(const QueryTile& tile, int partial, int visits) {
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kConsumers; ++warpgroup) {
      const u32 slot = q_slot(tiles, warpgroup);
      barrier_wait(shared.q_empty + 8 * slot, q_phase(tiles) ^ 1);
      if (leads()) {
        const u32 fields = shared.tile_fields + 4 * kFieldCount * (tiles % kFieldSlots * kConsumers + warpgroup);
        const u32 barrier = shared.q_full + 8 * slot;
        const int row = tile.row + 64 * warpgroup;
        store_shared(fields + 4 * kFieldBatch, tile.b);
        store_shared(fields + 4 * kFieldHead, tile.h);
        store_shared(fields + 4 * kFieldRow, row);
#if FL_SKIPS
        const int skipped = visits > 0 ? load_shared(skipped_address(shared, tiles, warpgroup)) : 0;
        store_shared(fields + 4 * kFieldPartial, partial - skipped);
        store_shared(fields + 4 * kFieldVisits, visits - skipped);
        store_shared(fields + 4 * kFieldSkipped, skipped);
#else
        store_shared(fields + 4 * kFieldPartial, partial);
        store_shared(fields + 4 * kFieldVisits, visits);
#endif
        if (visits > 0) {
          barrier_arrive_expect(barrier, kQBytes);
#pragma unroll
          for (int box = 0; box < kQkBoxes; ++box) {
            load_box(shared.q + slot * kQBytes + box * kQBoxBytes, params.q_map, barrier, box * 64, row, tile.h,
                     tile.b);
          }
        } else {
          barrier_arrive(barrier);
        }
      }
    }
    ++tiles;
  }

  __device__ __forceinline__ void load_k(const QueryTile& tile, int kv_tile, bool adds_zeros) {
    barrier_wait(shared.k_empty + 8 * ring.stage(), ring.phase() ^ 1);
    const u32 barrier = shared.k_full + 8 * ring.stage();
    if (leads()) {
      store_shared(shared.kv_tile + 4 * ring.stage(), kv_tile | (FL_SCORE_ZEROS && adds_zeros ? kAddsZeros : 0));
      barrier_arrive_expect(barrier, kKBytes);
    }
    load_keys<kQkBoxes>(shared.k + ring.stage() * kKBytes, params.k_map, barrier, tile, kv_tile);
  }

  template <int kBoxes>
  __device__ __forceinline__ void load_keys(u32 destination, const TensorMap& map, u32 barrier, const QueryTile& tile,
                                            int kv_tile) {
    if (FL_PAGE_SIZE) {
      __syncwarp();  // all lanes must know that the barrier now expects these bytes
    }
    load_pieces<kBoxes>(destination, map, barrier, kv_tile, tile.h / params.group,
                        page_of_piece(params, tile.b, kv_tile));
  }

  __device__ __forceinline__ void load_v(const QueryTile& tile, int kv_tile) {
    barrier_wait(shared.v_empty + 8 * ring.stage(), ring.phase() ^ 1);
    const u32 barrier = shared.v_full + 8 * ring.stage();
    if (leads()) {
      barrier_arrive_expect(barrier, kVBytes);
    }
    load_keys<kVBoxes>(shared.v + ring.stage() * kVBytes, params.v_map, barrier, tile, kv_tile);
  }

  // Pass a stage of K or V without data: consumers wait for both in every round. Such a round has a key tile after all
  // keys. (A stage may not have been used before: what its memory holds could be a negative number, at which a
  // keep mask would be read.)
  __device__ __forceinline__ void pass_k() {
    barrier_wait(shared.k_empty + 8 * ring.stage(), ring.phase() ^ 1);
    if (leads()) {
      store_shared(shared.kv_tile + 4 * ring.stage(), kNoTile);
      barrier_arrive(shared.k_full + 8 * ring.stage());
    }
  }
  __device__ __forceinline__ void pass_v() {
    barrier_wait(shared.v_empty + 8 * ring.stage(), ring.phase() ^ 1);
    if (leads()) {
      barrier_arrive(shared.v_full + 8 * ring.stage());
    }
  }

  __device__ __forceinline__ void let_scout_claim() {
#if FL_FINDS_VISITS
    barrier_arrive(shared.visits_empty);
#endif
  }

  // Loads in the order in which consumers need the tiles: K0 Q K1 V0 K2 V1 ... V(n-1), whose stage is the next K0's.
  __device__ __forceinline__ void load_tile(const QueryTile& tile, const Visits& found) {
    const int found_visits = found.partial + found.full;
    VisitIterator iterator(params, tile, found);
    int previous_tile = -1;
#pragma unroll 1
    for (int left = max(found_visits, 1); left > 0; --left) {
      if (left == kLoadsLeft || (previous_tile < 0 && left < kLoadsLeft)) {
        let_scout_claim();
#if FL_PREFETCH_Q && !FL_FINDS_VISITS
        const int after = __shfl_sync(0xffffffff, next, 0);
        if (after < params.total_tiles) {
          prefetch_q(params, query_tile(params, after));
        }
#endif
      }
      const int kv_tile = found_visits > 0 ? iterator.next<false>() : kNoTile;
      load_k(tile, kv_tile, found_visits > 0 && iterator.adds_zeros());
      if (previous_tile < 0) {
        load_q(tile, found_visits > 0 ? found.partial : 1, left);
      } else {
        load_v(tile, previous_tile);
      }
      previous_tile = kv_tile;
      ring.advance();
    }
    load_v(tile, previous_tile);
  }

  __device__ __forceinline__ void run() {
    pass_v();
#if FL_FINDS_VISITS
    while (true) {
      barrier_wait(shared.visits_full, tiles % 2);
      const int lane = threadIdx.x % 32;
      const int index = load_shared(shared.visits + 4 * kVisitTile);
      Visits found;
      found.partial = load_shared(shared.visits + 4 * kVisitPartial);
      found.full = load_shared(shared.visits + 4 * kVisitFull);
      found.partial_bits = static_cast<u32>(load_shared(shared.visits + 4 * (kVisitPartialBits + lane)));
      found.full_bits = static_cast<u32>(load_shared(shared.visits + 4 * (kVisitFullBits + lane)));
#if FL_SCORE_ZEROS
      found.zeros_bits = static_cast<u32>(load_shared(shared.visits + 4 * (kVisitZerosBits + lane)));
#endif
      if (index == kNoMoreTiles) {
        break;
      }
      load_tile(query_tile(params, index), found);
    }
#else
    int index = blockIdx.x;
    while (index < params.total_tiles) {
      next = claim_tile(params);  // waited for when few loads are left
      const QueryTile tile = query_tile(params, index);
      load_tile(tile, find_visits(params, tile));
      index = __shfl_sync(0xffffffff, next, 0);
    }
    stop_claiming(params);
#endif
    pass_k();
    load_q(QueryTile(), 0, kNoMoreTiles);
    for (int i = 1; i < kLastRounds; ++i) {
      ring.advance();
      pass_k();
      pass_v();
    }
  }
};

}  // namespace flashlift::cuda
