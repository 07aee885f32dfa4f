// The Hopper backward kernel for queries: d_q, and the exact delta of each row.
#include "cuda/kernels/sm90/backward_consumer.cuh"
#include "cuda/kernels/sm90/backward_producer.cuh"

namespace flashlift::cuda {
namespace {

// The part of the row's softmax that the sinks have.
__device__ __forceinline__ float sinks_share(const ForwardParams& params, int h, float lse) {
  float share = 0.0f;
#if FL_HAS_SINKS
  for (int i = 0; i < params.sinks_per_head; ++i) {
    share += exponential(fmaf(sink_at(params, h, i), kExponentUnit, -lse));
  }
#endif
  return share;
}

__device__ __forceinline__ bool has_nonfinite(const Consumer& consumer) {
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < FL_QK_DIM / 2; ++i) {
    total += consumer.second[i] + consumer.first[i];
  }
  return !(fabsf(total) < FL_INFINITY);
}

// What the rounded output's delta lacks, and d_q without it.
__device__ __forceinline__ void finish(Consumer& consumer, const ForwardParams& params, const BackwardParams& backward,
                                       const RowTiles& tiles, const QueryTile& tile) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int q = consumer.row(r);
    const bool inside = q < params.q_len;
    float missing = quad_sum(consumer.row_rest[r]) - sinks_share(params, tile.h, consumer.row_lse[r]) * consumer.row_delta[r];
    missing -= inside ? d_lse_at(backward, tile.b, tile.h, q) : 0.0f;
    missing = consumer.row_lse[r] == FL_INFINITY ? 0.0f : missing;  // no keys
    if (inside && threadIdx.x % 4 == 0) {
      row_statistics(params, tiles, tile.b, tile.h, q)[tiles.rows] = consumer.row_delta[r] + missing;
    }
#pragma unroll
    for (int j = 0; j < FL_QK_DIM / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int i = 4 * j + 2 * r + c;
        consumer.second[i] = fmaf(-missing, consumer.first[i], consumer.second[i]);
      }
    }
    if (inside && backward.d_q != nullptr) {
      const Strides& strides = backward.d_q_strides;
      store_gradient_row(consumer.second, r, params.scale,
                         static_cast<InputElement*>(backward.d_q) + tile.b * strides.batch + tile.h * strides.head +
                             q * strides.row,
                         strides.column, backward.paired_d_q, 0, FL_HEAD_DIM);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashlift_backward_queries(const __grid_constant__ ForwardParams params,
                               const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles,
                               const __grid_constant__ TensorMap d_out_map) {
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
  const QueryTile tile = query_tile(params, blockIdx.x);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_decrease<FL_PRODUCER_REGISTERS>();
    if (threadIdx.x < 32) {
      Producer producer{params, tiles, d_out_map, shared, tile.b, tile.h / params.group};
      producer.load_rows(tile.h, tile.row);
      const ColumnTile nothing{true, tile.h, (1 << 29) / FL_BLOCK_N * FL_BLOCK_N, true};
      producer.load_all(KeyColumns(params, tile), nothing);
      if (kCleans) {
        barrier_wait(shared.verdict, 0);
        if (load_shared(shared.verdict + 8) != 0) {
          producer.load_all(KeyColumns(params, tile), nothing);
        }
      }
    }
  } else {
    registers_increase<FL_CONSUMER_REGISTERS>();
    Consumer consumer{params, shared, warpgroup - 1, tile.b, tile.row};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* const statistics = row_statistics(params, tiles, tile.b, tile.h, consumer.row(r));
      consumer.row_lse[r] = statistics[0];
      consumer.row_delta[r] = statistics[tiles.rows];
    }
    barrier_wait(shared.rows_full, 0);
#pragma unroll 1
    do {
      consumer.sweep();
      if (!kCleans || consumer.careful) {
        break;
      }
      consumer.careful = any_consumer(has_nonfinite(consumer));
      if (threadIdx.x == 128) {
        store_shared(shared.verdict + 8, consumer.careful);
        barrier_arrive(shared.verdict);
      }
    } while (consumer.careful);
    finish(consumer, params, backward, tiles, tile);
  }
}

}  // namespace flashlift::cuda
