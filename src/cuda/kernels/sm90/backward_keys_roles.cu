// The Hopper backward kernel for keys whose rows are so wide that a warpgroup's registers hold only one sum: d_k and d_v
// by roles. A block has 64 keys. Warpgroup 0 computes s, the probabilities and d_v; warpgroup 1 computes d_p, d_s and d_k.
// The probabilities go from one to the other through shared memory, rounded to 16 bits as both sums need them.
//
// Both blocks of a cluster, with 128 neighbouring keys, visit the same query tiles: each loads one half of a tile for
// both. A stage is therefore free when the consumers of both blocks have given it back.
//
// A cluster processes one tile of 128 keys after the other, as the blocks of backward_keys.cu do. Its first block takes
// the number of the next one from a counter, and tells the other.
#include "cuda/kernels/sm90/backward_roles.cuh"

namespace flashlift::cuda {
namespace {

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
    consumer.begin_tile(keys.b, keys.first + 64 * static_cast<int>(consumer.other ^ 1));
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
    for_each_tile(consumer, params, backward, shared, [&](const KeyRows& keys) {
      consumer.sum_values();
      store_d_v(consumer, params, backward, tiles, keys);
    });
  } else {
    registers_increase<FL_CONSUMER_REGISTERS>();
    RoleConsumer consumer{{params, shared, 0, 0, 0}, {}, rank ^ 1};
    for_each_tile(consumer, params, backward, shared, [&](const KeyRows& keys) {
      release(shared.rows_empty);  // its number has been read
      consumer.sum_keys();
      store_d_k(consumer, params, backward, keys);
    });
  }
  cluster_sync();  // the other block may still arrive here
}

}  // namespace flashlift::cuda
