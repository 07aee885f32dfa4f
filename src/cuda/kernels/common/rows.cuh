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

// Of a row without keys. For any finite score, its p is 0.
__device__ __forceinline__ RowGradient row_without_keys() { return {FL_INFINITY, 0.0f, 0.0f, 1}; }

#if FL_ROW_TILES
constexpr bool kReadsRowTiles = true;
#else
constexpr bool kReadsRowTiles = false;
#endif

// Reads rows' statistics: the preprocess's, or those of flashlift_backward_rows. Rows after the end are like rows without
// keys.
class RowReader {
 public:
  __device__ __forceinline__ RowReader(const ForwardParams& params, const BackwardParams& backward,
                                       const RowTiles& tiles)
      : params_(params),
        backward_(backward),
        tiles_(tiles),
        reads_tiles_(kReadsRowTiles && !others_run(backward, tiles)),
        tile_shift_(kReadsRowTiles ? __ffs(tiles.rows) - 1 : 0) {}

  __device__ __forceinline__ RowGradient at(int b, int h, int q) const {
    if (q >= params_.q_len) {
      return row_without_keys();
    }
    if (reads_tiles_) {
      const float* const lse = lse_at(b, h, q);
      return of_lse(lse[0], lse[tiles_.rows]);
    }
    return row_gradients(params_, backward_, b, h)[q];
  }

  // Of the rows q + 8j and q + 8j + 1, which lie in one tile. q is even.
  template <int kCount>
  __device__ __forceinline__ void pairs(RowGradient (&rows)[kCount], int b, int h, int q) const {
    if (reads_tiles_) {
      const float* const lse_of_first = lse_at(b, h, q);
      float2 lse[kCount / 2];
      float2 delta[kCount / 2];
#pragma unroll
      for (int j = 0; j < kCount / 2; ++j) {
        lse[j] = *reinterpret_cast<const float2*>(lse_of_first + 8 * j);
        delta[j] = *reinterpret_cast<const float2*>(lse_of_first + tiles_.rows + 8 * j);
      }
#pragma unroll
      for (int j = 0; j < kCount / 2; ++j) {
        rows[2 * j] = of_lse(lse[j].x, delta[j].x);
        rows[2 * j + 1] = of_lse(lse[j].y, delta[j].y);
      }
      return;
    }
    const RowGradient* const records = row_gradients(params_, backward_, b, h);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int row = q + i / 2 * 8 + i % 2;
      rows[i] = records[min(row, params_.q_len - 1)];
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      rows[i] = q + i / 2 * 8 + i % 2 < params_.q_len ? rows[i] : row_without_keys();
    }
  }

 private:
  __device__ __forceinline__ const float* lse_at(int b, int h, int q) const {
    const long long head = static_cast<long long>(b) * params_.q_heads + h;
    return tiles_.statistics + (head * tiles_.tiles + (q >> tile_shift_)) * 2 * tiles_.rows + (q & (tiles_.rows - 1));
  }

  // lse is +inf without keys.
  static __device__ __forceinline__ RowGradient of_lse(float lse, float delta) {
    return {lse * (1.0f / kExponentUnit), 1.0f, delta, lse == FL_INFINITY};
  }

  const ForwardParams& params_;
  const BackwardParams& backward_;
  const RowTiles& tiles_;
  const bool reads_tiles_;
  const int tile_shift_;  // a tile has 2^tile_shift_ rows
};

__device__ __forceinline__ RowGradient row_at(const ForwardParams& params, const BackwardParams& backward,
                                              const RowTiles& tiles, int b, int h, int q) {
  return RowReader(params, backward, tiles).at(b, h, q);
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
