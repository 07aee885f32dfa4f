// Shared code of the Hopper backward kernels for keys: how a block writes the gradients of its keys.
#pragma once

#include "cuda/kernels/sm90/backward_gradients.cuh"

namespace flashlift::cuda {

#if FL_EMPTY_UNIFORM && FL_SUMS_FIRST
// If the output of a row without keys is the mean of all values, its gradient is added to each value. This is rare, so
// that small code matters more than speed.
__device__ __forceinline__ void add_empty_rows(float (&d_v)[kFirstSums], const ForwardParams& params,
                                               const BackwardParams& backward, const RowTiles& tiles,
                                               const KeyRows& keys) {
  const float share = 1.0f / static_cast<float>(params.kv_len);
#pragma unroll 1
  for (int h = keys.kv_head * params.group; h < (keys.kv_head + 1) * params.group; ++h) {
#pragma unroll 1
    for (int q = 0; q < params.q_len; ++q) {
      if (*row_statistics(params, tiles, keys.b, h, q) != FL_INFINITY) {
        continue;
      }
      const InputElement* const row = static_cast<const InputElement*>(backward.d_out) +
                                      keys.b * backward.d_out_strides.batch + h * backward.d_out_strides.head +
                                      q * backward.d_out_strides.row;
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

// The gradients of the block's keys, and of their values, when all columns have been summed.
__device__ __forceinline__ void store_d_v(Consumer& consumer, const ForwardParams& params,
                                          const BackwardParams& backward, const RowTiles& tiles, const KeyRows& keys) {
#if FL_SUMS_FIRST
#if FL_EMPTY_UNIFORM
  if (*tiles.any_empty != 0) {
    add_empty_rows(consumer.first, params, backward, tiles, keys);
  }
#endif
  if (backward.d_v != nullptr) {
    store_gradient<FL_VALUE_DIM>(consumer.first, consumer, params.dropout_factor, backward.d_v, backward.d_v_strides,
                                 backward.vector_d_v != 0, keys.b, keys.kv_head, params.kv_len);
  }
#endif
}

__device__ __forceinline__ void store_d_k(const Consumer& consumer, const ForwardParams& params,
                                          const BackwardParams& backward, const KeyRows& keys) {
#if FL_SUMS_SECOND
  if (backward.d_k != nullptr) {
    store_gradient<FL_HEAD_DIM>(consumer.second, consumer, params.scale, backward.d_k, backward.d_k_strides,
                                backward.vector_d_k != 0, keys.b, keys.kv_head, params.kv_len);
  }
#endif
}

}  // namespace flashlift::cuda
