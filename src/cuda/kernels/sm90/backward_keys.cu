// The Hopper backward kernel for keys: d_k, d_v or both. For each of its key tiles, a block iterates over the query tiles
// that see these keys, of all heads that share them, always in the same order.
//
// There is one block per multiprocessor, which processes one key tile after the other. While consumers finish a tile and
// store its gradients, the producer loads the first queries of the next one and, as soon as they are no longer needed,
// its keys and values.
#include "cuda/kernels/sm90/backward_keys.cuh"
#include "cuda/kernels/sm90/backward_producer.cuh"

namespace flashlift::cuda {
namespace {

__device__ __forceinline__ void produce(const ForwardParams& params, const BackwardParams& backward,
                                        const RowTiles& tiles, const TensorMap& d_out_map, const SharedLayout& shared) {
  Producer producer{params, tiles, d_out_map, shared, 0, 0};
#pragma unroll 1
  for (u32 turn = 0;; ++turn) {
    const int index = producer.take(tiles.next_block + (FL_SUMS_SECOND ? kNextKeys : kNextValues));
    if (index >= key_tile_count(params, backward)) {
      producer.end(turn);
      return;
    }
    const KeyTile keys = key_tile<FL_BLOCK_M>(params, backward, index);
    producer.b = keys.b;
    producer.kv_head = keys.kv_head;
    producer.prefetch_rows(params.k_map, params.v_map, keys.b, keys.kv_head, keys.first);
    const int first_head = keys.kv_head * params.group;
    // The tile for no rows.
    const ColumnTile nothing{true, first_head, (tiles.tiles - 1) * tiles.rows, kPartial};
    producer.load_all(
        {keys.b, first_head, first_head + params.group - 1, keys.first, keys.last}, nothing, kBlockVBytes,
        [&] {
          producer.give_rows(turn, index);
          producer.load_qk_rows(first_head, keys.first);
        },
        [&](const ColumnRings& first) {
          if (kComputesDp) {
            // Who has given the last tile's d_out back has multiplied it with the last values.
            const ColumnRings last = first.before();
            barrier_wait(shared.v_empty + 8 * last.v_stage(), last.v_phase());
            producer.load_v_rows(first_head, keys.first, shared.v_full + 8 * first.v_stage());
          }
        });
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashlift_backward_keys(const __grid_constant__ ForwardParams params,
                            const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles,
                            const __grid_constant__ TensorMap d_out_map) {
  if (others_run(backward, tiles)) {
    return;
  }
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const SharedLayout shared = shared_layout(shared_address(shared_memory));
  begin(shared, params, d_out_map);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_decrease<FL_PRODUCER_REGISTERS>();
    if (threadIdx.x < 32) {
      produce(params, backward, tiles, d_out_map, shared);
    }
  } else {
    registers_increase<FL_CONSUMER_REGISTERS>();
    Consumer consumer{params, shared, warpgroup - 1, 0, 0};
    consumer.start();
#pragma unroll 1
    for (u32 turn = 0;; ++turn) {
      const int index = wait_for_rows(shared, turn);
      if (index == kNoRows) {
        break;
      }
      const KeyTile of_sweep = key_tile<FL_BLOCK_M>(params, backward, index);
      consumer.b = of_sweep.b;
      consumer.first_row = of_sweep.first;
      consumer.sweep();
      // Computed again, so that it needs no registers before.
      const KeyTile keys =
          key_tile<FL_BLOCK_M>(params, backward, load_shared_once(shared.row_tiles + 4 * (turn % 2)));
      store_d_k(consumer, params, backward, keys);
      store_d_v(consumer, params, backward, tiles, keys);
    }
  }
}

}  // namespace flashlift::cuda
