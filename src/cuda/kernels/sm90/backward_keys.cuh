// What the Hopper backward kernels for keys share: how the gradients of a block's keys leave it.
#pragma once

#include "cuda/kernels/sm90/backward_consumer.cuh"

namespace flashlift::cuda {

#if FL_EMPTY_UNIFORM && FL_SUMS_FIRST
// A row without keys that gives the mean of all values passes its gradient on to each of them. Rare, so small code
// counts.
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

// What is left to do when all columns have been summed.
__device__ __forceinline__ void finish_keys(Consumer& consumer, const ForwardParams& params,
                                            const BackwardParams& backward, const RowTiles& tiles,
                                            const KeyTile& keys) {
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

}  // namespace flashlift::cuda
