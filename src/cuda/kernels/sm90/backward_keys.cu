// The Hopper backward kernel for keys: d_k, d_v or both. A block iterates over the query tiles that see its keys, of
// all heads that share the keys, always in the same order.
#include "cuda/kernels/sm90/backward_keys.cuh"
#include "cuda/kernels/sm90/backward_producer.cuh"

namespace flashlift::cuda {

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashlift_backward_keys(const __grid_constant__ ForwardParams params,
                            const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles,
                            const __grid_constant__ TensorMap d_out_map) {
  if (others_run(backward, tiles)) {
    return;
  }
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const SharedLayout shared = shared_layout(shared_address(shared_memory));
  if (threadIdx.x == 0) {
    init_barriers(shared);
    prefetch_map(params.q_map);
    prefetch_map(params.k_map);
    prefetch_map(params.v_map);
    prefetch_map(d_out_map);
  }
  __syncthreads();
  const KeyTile keys = key_tile<FL_BLOCK_M>(params, backward, blockIdx.x);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_decrease<FL_PRODUCER_REGISTERS>();
    if (threadIdx.x < 32) {
      Producer producer{params, tiles, d_out_map, shared, keys.b, keys.kv_head};
      producer.load_rows(0, keys.first);
      const int first_head = keys.kv_head * params.group;
      // The tile for no rows.
      const ColumnTile nothing{true, first_head, (tiles.tiles - 1) * tiles.rows, kPartial};
      producer.load_all({keys.b, first_head, first_head + params.group - 1, keys.first, keys.last}, nothing,
                        [](const ColumnRings&) {});
    }
  } else {
    registers_increase<FL_CONSUMER_REGISTERS>();
    Consumer consumer{params, shared, warpgroup - 1, keys.b, keys.first};
    barrier_wait(shared.rows_full, 0);
    consumer.sweep();
    store_d_k(consumer, params, backward, keys);
    store_d_v(consumer, params, backward, tiles, keys);
  }
}

}  // namespace flashlift::cuda
