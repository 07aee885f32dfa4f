// The Hopper backward kernel for keys whose rows are so wide that a warpgroup's registers hold only one sum: d_k and d_v
// by roles. A block has 64 keys. Warpgroup 0 computes s, the probabilities and d_v; warpgroup 1 computes d_p, d_s and d_k.
// The probabilities go from one to the other through shared memory, rounded to 16 bits as both sums need them.
//
// Both blocks of a cluster, with 128 neighbouring keys, visit the same query tiles: each loads one half of a tile for
// both. A stage is therefore free when the consumers of both blocks have given it back.
//
// A cluster processes one tile of 128 keys after the other, as the blocks of backward_keys.cu do. Its first block takes
// the number of the next one from a counter, and tells the other.
#include "cuda/kernels/sm90/backward_keys.cuh"
#include "cuda/kernels/sm90/backward_producer.cuh"

namespace flashlift::cuda {
namespace {

struct RoleConsumer : Consumer {
  ColumnRing<2> exchange;
  const u32 other;  // block of the cluster

  // One arrival a warp at both blocks' barriers.
  __device__ __forceinline__ void release_v_of_both(u32 stage) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      barrier_arrive(shared.v_empty + 8 * stage);
      barrier_arrive_remote(address_in(shared.v_empty + 8 * stage, other));
    }
  }
  // Here all lanes at their own block's, which have read statistics of its stage.
  __device__ __forceinline__ void release_qk_of_both(u32 stage) const {
    __syncwarp();
    barrier_arrive(shared.qk_empty + 8 * stage);
    if (threadIdx.x % 32 == 0) {
      barrier_arrive_remote(address_in(shared.qk_empty + 8 * stage, other));
    }
  }

  // A thread's operands, in pieces of 16 bytes.
  __device__ __forceinline__ u32 place_in_exchange() const {
    return shared.exchange + exchange.stage() * kExchangeBytes + 16 * (threadIdx.x % 128);
  }

  // Warpgroup 0: the probabilities and d_v.
  __device__ __forceinline__ void sum_values() {
#pragma unroll
    for (int i = 0; i < kFirstSums; ++i) {
      first[i] = 0.0f;
    }
    u64 rows_qk = descriptor_k_major(shared.rows_qk);
    pin(rows_qk);
    u32 previous = kNone;  // the stage of d_out whose sum runs
    int flags;
#pragma unroll 1
    do {
      const u32 stage = rings.qk.stage();
      const u32 v_stage = rings.v_stage();
      const u32 fields = shared.fields + 4 * kFieldCount * stage;
      barrier_wait(shared.qk_full + 8 * stage, rings.qk.phase());
      pin(s);
      wgmma_fence();
      issue_scores<FL_QK_DIM>(s, rows_qk, descriptor_k_major(shared.columns_qk + stage * kColumnQkBytes));
      flags = load_shared_once(fields + 4 * kFieldFlags);
      const TilePlace place{b,
                            load_shared_once(fields + 4 * kFieldHead),
                            {row(0), row(1)},
                            load_shared_once(fields + 4 * kFieldFirst) + static_cast<int>(threadIdx.x) % 4 * 2};
      wgmma_wait<1>();
      pin(first);
      pin(p);
      if (previous != kNone) {
        release_v_of_both(previous);
      }
      wgmma_wait<0>();
      pin(s);
      if ((flags & kLast) != 0) {
        release(shared.rows_empty);  // the next tile's K may come
      }
      take_probabilities(place, flags, 0xffffffff, shared.statistics + stage * kStatisticsBytes);
      release_qk_of_both(stage);
      barrier_wait(shared.exchange_empty + 8 * exchange.stage(), exchange.phase() ^ 1);
      const u32 to = place_in_exchange();
#pragma unroll
      for (int i = 0; i < kScores / 2; i += 4) {
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + i / 4 * 128 * 16), "r"(p[i]), "r"(p[i + 1]),
                     "r"(p[i + 2]), "r"(p[i + 3])
                     : "memory");
      }
      barrier_arrive(shared.exchange_full + 8 * exchange.stage());
      exchange.advance();
      barrier_wait(shared.v_full + 8 * v_stage, rings.v_phase());
      pin(p);
      pin(first);
      wgmma_fence();
      issue_sum(first, p, descriptor_n_major(shared.columns_v + v_stage * kColumnVBytes, kColumnBoxBytes));
      previous = v_stage;
      rings.advance();
    } while ((flags & kLast) == 0);
    wgmma_wait<0>();
    pin(first);
    pin(p);
    release_v_of_both(previous);
  }

  // Warpgroup 1: d_p and d_k.
  __device__ __forceinline__ void sum_keys() {
#pragma unroll
    for (int i = 0; i < kSecondSums; ++i) {
      second[i] = 0.0f;
    }
    u64 rows_v = descriptor_k_major(shared.rows_v);
    pin(rows_v);
    u32 previous = kNone;  // the stage of q whose sum runs
    int flags;
#pragma unroll 1
    do {
      const u32 stage = rings.qk.stage();
      const u32 v_stage = rings.v_stage();
      barrier_wait(shared.v_full + 8 * v_stage, rings.v_phase());
      pin(s);
      wgmma_fence();
      issue_scores<FL_V_DIM>(s, rows_v, descriptor_k_major(shared.columns_v + v_stage * kColumnVBytes));
      wgmma_wait<1>();
      pin(second);
      pin(p);
      if (previous != kNone) {
        release_qk_of_both(previous);
      }
      barrier_wait(shared.qk_full + 8 * stage, rings.qk.phase());
      flags = load_shared_once(shared.fields + 4 * kFieldCount * stage + 4 * kFieldFlags);
      wgmma_wait<0>();
      pin(s);
      release_v_of_both(v_stage);
      barrier_wait(shared.exchange_full + 8 * exchange.stage(), exchange.phase());
      const u32 from = place_in_exchange();
#pragma unroll
      for (int i = 0; i < kScores / 2; i += 4) {
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(p[i]), "=r"(p[i + 1]), "=r"(p[i + 2]), "=r"(p[i + 3])
                     : "r"(from + i / 4 * 128 * 16)
                     : "memory");
      }
      barrier_arrive(shared.exchange_empty + 8 * exchange.stage());
      exchange.advance();
      take_gradients((flags & kPartial) != 0, 0xffffffff,
                     shared.statistics + stage * kStatisticsBytes + 4 * FL_BLOCK_N);
      pin(p);
      pin(second);
      wgmma_fence();
      issue_sum(second, p, descriptor_n_major(shared.columns_qk + stage * kColumnQkBytes, kColumnBoxBytes));
      previous = stage;
      rings.advance();
    } while ((flags & kLast) == 0);
    wgmma_wait<0>();
    pin(second);
    pin(p);
    release_qk_of_both(previous);
  }
};

// The number of the cluster's next key tile.
__device__ __forceinline__ int take_for_cluster(const Producer& producer, const SharedLayout& shared, u32 rank,
                                                int* counter, u32 turn) {
  const u32 at = turn % kClusterTurns;
  if (rank == 0) {
    const int index = producer.take(counter);
    if (producer.leads()) {
      send_remote(address_in(shared.cluster_turns + 4 * at, 1), index,
                  address_in(shared.cluster_turns_full + 8 * at, 1));
    }
    return index;
  }
  cluster_barrier_wait(shared.cluster_turns_full + 8 * at, turn / kClusterTurns % 2);
  return load_shared_once(shared.cluster_turns + 4 * at);
}

__device__ __forceinline__ void produce(const ForwardParams& params, const BackwardParams& backward,
                                        const RowTiles& tiles, const TensorMap& d_out_map, const SharedLayout& shared,
                                        u32 rank) {
  Producer producer{params, tiles, d_out_map, shared, 0, 0};
#pragma unroll 1
  for (u32 turn = 0;; ++turn) {
    const int index = take_for_cluster(producer, shared, rank, tiles.next_block + kNextKeys, turn);
    if (index >= key_tile_count(params, backward)) {
      producer.end(turn);
      return;
    }
    const KeyTile keys = key_tile<FL_BLOCK_M>(params, backward, index);
    const int first_key = keys.first + 64 * static_cast<int>(rank);
    producer.b = keys.b;
    producer.kv_head = keys.kv_head;
    producer.prefetch_rows(params.k_map, params.v_map, keys.b, keys.kv_head, first_key);
    const int first_head = keys.kv_head * params.group;
    // The tile for no rows.
    const ColumnTile nothing{true, first_head, (tiles.tiles - 1) * tiles.rows, kPartial};
    producer.load_all(
        {keys.b, first_head, first_head + params.group - 1, keys.first, keys.last}, nothing, kBlockVBytes,
        [&] {
          producer.give_rows(turn, index);
          producer.load_qk_rows(first_head, first_key);
        },
        [&](const ColumnRings& first) {
          // Who has given the last tile's d_out back has multiplied it with the last values.
          const ColumnRings last = first.before();
          cluster_barrier_wait(shared.v_empty + 8 * last.v_stage(), last.v_phase());
          producer.load_v_rows(first_head, first_key, shared.v_full + 8 * first.v_stage());
        });
  }
}

// Calls use(consumer, keys) for each key tile.
template <typename Use>
__device__ __forceinline__ void for_each_tile(RoleConsumer& consumer, const ForwardParams& params,
                                              const BackwardParams& backward, const SharedLayout& shared,
                                              const Use& use) {
#pragma unroll 1
  for (u32 turn = 0;; ++turn) {
    const int index = wait_for_rows(shared, turn);
    if (index == kNoRows) {
      break;
    }
    const KeyTile keys = key_tile<FL_BLOCK_M>(params, backward, index);
    consumer.b = keys.b;
    consumer.first_row = keys.first + 64 * static_cast<int>(consumer.other ^ 1);
    use(keys);
  }
}

}  // namespace

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    flashlift_backward_keys(const __grid_constant__ ForwardParams params,
                            const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles,
                            const __grid_constant__ TensorMap d_out_map) {
  if (others_run(backward, tiles)) {
    return;
  }
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const SharedLayout shared = shared_layout(shared_address(shared_memory));
  begin(shared, params, d_out_map);
  cluster_sync();
  const u32 rank = cluster_rank();
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_decrease<FL_PRODUCER_REGISTERS>();
    if (threadIdx.x < 32) {
      produce(params, backward, tiles, d_out_map, shared, rank);
    }
  } else if (warpgroup == 1) {
    registers_increase<FL_CONSUMER_REGISTERS>();
    RoleConsumer consumer{{params, shared, 0, 0, 0}, {}, rank ^ 1};
    for_each_tile(consumer, params, backward, shared, [&](const KeyTile& keys) {
      consumer.sum_values();
      store_d_v(consumer, params, backward, tiles, keys);
    });
  } else {
    registers_increase<FL_CONSUMER_REGISTERS>();
    RoleConsumer consumer{{params, shared, 0, 0, 0}, {}, rank ^ 1};
    for_each_tile(consumer, params, backward, shared, [&](const KeyTile& keys) {
      release(shared.rows_empty);  // its number has been read
      consumer.sum_keys();
      store_d_k(consumer, params, backward, keys);
    });
  }
  cluster_sync();  // the other block may still arrive here
}

}  // namespace flashlift::cuda
