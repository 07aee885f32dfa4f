// The row statistics that the backward kernels read before their products.
#pragma once

#include "cuda/kernels/common/backward_params.h"
#include "cuda/kernels/common/softmax.cuh"

namespace flashlift::cuda {

__device__ __forceinline__ RowGradient* row_gradients(const ForwardParams& params, const BackwardParams& backward, int b,
                                                      int h) {
  return backward.rows + (static_cast<long long>(b) * params.q_heads + h) * params.q_len;
}

// Does the preprocess leave the call to the other kernels? They run after those that call this.
__device__ __forceinline__ bool others_run(const BackwardParams& backward, const RowTiles& tiles) {
#if FL_HAS_FALLBACK
  return *tiles.any_large != 0 || (backward.d_out_has_low != nullptr && *backward.d_out_has_low != 0);
#else
  return false;
#endif
}

// A row's statistics, of the preprocess or of flashlift_backward_rows. Rows after the end are as rows without keys.
__device__ __forceinline__ RowGradient row_at(const ForwardParams& params, const BackwardParams& backward,
                                              const RowTiles& tiles, int b, int h, int q) {
#if FL_ROW_TILES
  if (!others_run(backward, tiles)) {
    const long long head = static_cast<long long>(b) * params.q_heads + h;
    const float* const tile = tiles.statistics + (head * tiles.tiles + q / tiles.rows) * 2 * tiles.rows;
    const float lse = tile[q % tiles.rows];
    return lse == FL_INFINITY ? RowGradient{0.0f, 0.0f, 0.0f, 1}
                              : RowGradient{lse / kExponentUnit, 1.0f, tile[tiles.rows + q % tiles.rows], 0};
  }
#endif
  return q < params.q_len ? row_gradients(params, backward, b, h)[q] : RowGradient{0.0f, 0.0f, 0.0f, 1};
}

// Whether other kernels have already done the work of the portable ones.
__device__ __forceinline__ bool is_done(const BackwardParams& backward) {
  const int* const first = backward.only_if[0];
  const int* const second = backward.only_if[1];
  return first != nullptr && *first == 0 && (second == nullptr || *second == 0);
}

__device__ __forceinline__ float d_lse_at(const BackwardParams& backward, int b, int h, int q) {
  return backward.d_lse == nullptr ? 0.0f
                                   : backward.d_lse[b * backward.d_lse_strides[0] + h * backward.d_lse_strides[1] +
                                                    q * backward.d_lse_strides[2]];
}

__device__ __forceinline__ float sink_at(const ForwardParams& params, int h, int i) {
  return params.sinks[h * params.sink_strides[0] + i * params.sink_strides[1]];
}

}  // namespace flashlift::cuda
