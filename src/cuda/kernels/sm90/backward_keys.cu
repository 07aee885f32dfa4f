// The Hopper backward kernel for keys: d_k, d_v or both. The query tiles that see a block's keys come one after the other, of
// all heads that share the keys, and in an order that is always the same.
#include "cuda/kernels/sm90/backward_consumer.cuh"
#include "cuda/kernels/sm90/backward_producer.cuh"

namespace flashlift::cuda {
namespace {

struct KeyTile {
  int b;
  int kv_head;
  int first, last;
};

// Heads whose queries fit the L2 cache together are neighbours; among them the early keys come first, which under a causal
// mask are the ones that most queries see.
__device__ __forceinline__ KeyTile key_tile(const ForwardParams& params, const BackwardParams& backward, int index) {
  const int section_heads = params.heads_per_section / params.group;
  const int section = index / (section_heads * backward.kv_tiles);
  const int within = index - section * section_heads * backward.kv_tiles;
  const int first_head = section * section_heads;
  const int heads = min(section_heads, params.batch * params.kv_heads - first_head);
  const int tile = within / heads;
  const int head = first_head + within - tile * heads;
  const int first_key = tile * FL_BLOCK_M;
  return {head / params.kv_heads, head % params.kv_heads, first_key, min(first_key + FL_BLOCK_M, params.kv_len) - 1};
}

#if FL_EMPTY_UNIFORM && FL_SUMS_FIRST
// A row without keys that gives the mean of all values passes its gradient on to each of them. Rare, so small code counts.
__device__ __forceinline__ void add_empty_rows(float (&d_v)[kFirstSums], const ForwardParams& params,
                                               const BackwardParams& backward, const RowTiles& tiles,
                                               const KeyTile& keys) {
  const float share = 1.0f / static_cast<float>(params.kv_len);
#pragma unroll 1
  for (int h = keys.kv_head * params.group; h < (keys.kv_head + 1) * params.group; ++h) {
#pragma unroll 1
    for (int q = 0; q < params.q_len; ++q) {
      if (*row_statistics(params, tiles, keys.b, h, q) != FL_INFINITY) {
        continue;
      }
      const InputElement* const row = static_cast<const InputElement*>(backward.d_out) + keys.b * backward.d_out_strides.batch +
                                      h * backward.d_out_strides.head + q * backward.d_out_strides.row;
#pragma unroll
      for (int i = 0; i < kFirstSums / 2; ++i) {
        const int column = i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
        const float x = column < FL_VALUE_DIM ? to_float(row[column * backward.d_out_strides.column]) * share : 0.0f;
        d_v[i / 2 * 4 + i % 2] += x;
        d_v[i / 2 * 4 + 2 + i % 2] += x;
      }
    }
  }
}
#endif

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
  if (threadIdx.x == 0) {
    init_barriers(shared);
    prefetch_map(params.q_map);
    prefetch_map(params.k_map);
    prefetch_map(params.v_map);
    prefetch_map(d_out_map);
  }
  __syncthreads();
  const KeyTile keys = key_tile(params, backward, blockIdx.x);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_decrease<FL_PRODUCER_REGISTERS>();
    if (threadIdx.x < 32) {
      Producer producer{params, tiles, d_out_map, shared, keys.b, keys.kv_head};
      producer.load_rows(0, keys.first);
      const int first_head = keys.kv_head * params.group;
      // The tile for no rows.
      const ColumnTile nothing{true, first_head, (tiles.tiles - 1) * tiles.rows, true};
      producer.load_all({keys.b, first_head, first_head + params.group - 1, keys.first, keys.last}, nothing);
    }
  } else {
    registers_increase<FL_CONSUMER_REGISTERS>();
    Consumer consumer{params, shared, warpgroup - 1, keys.b, keys.first};
    barrier_wait(shared.rows_full, 0);
    consumer.sweep();
#if FL_EMPTY_UNIFORM && FL_SUMS_FIRST
    if (*tiles.any_empty != 0) {
      add_empty_rows(consumer.first, params, backward, tiles, keys);
    }
#endif
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = consumer.row(r);
      if (key >= params.kv_len) {
        continue;
      }
      const auto row = [&](void* tensor, const Strides& strides) {
        return static_cast<InputElement*>(tensor) + keys.b * strides.batch + keys.kv_head * strides.head +
               key * strides.row;
      };
#if FL_SUMS_SECOND
      if (backward.d_k != nullptr) {
        store_gradient_row(consumer.second, r, params.scale, row(backward.d_k, backward.d_k_strides),
                           backward.d_k_strides.column, backward.paired_d_k, 0, FL_HEAD_DIM);
      }
#endif
#if FL_SUMS_FIRST
      if (backward.d_v != nullptr) {
        store_gradient_row(consumer.first, r, params.dropout_factor, row(backward.d_v, backward.d_v_strides),
                           backward.d_v_strides.column, backward.paired_d_v, 0, FL_VALUE_DIM);
      }
#endif
    }
  }
}

}  // namespace flashlift::cuda
