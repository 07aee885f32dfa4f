// Applies the problem's programs to a tile of scores in registers (layout: softmax.cuh).
#pragma once

#include "forward_params.h"
#include "program.cuh"
#include "ptx.cuh"
#include "softmax.cuh"

namespace flashlift::cuda {

// What the softmax's scores have to be multiplied by: a score_mod sees scaled scores and may leave a last constant factor
// to the softmax (FL_SCORE_UNIT); without one, the scale is folded into the softmax.
__device__ __forceinline__ float score_unit(const ForwardParams& params) {
#if FL_HAS_SCORE_MOD
  return FL_SCORE_UNIT;
#else
  return params.scale;
#endif
}

// The same in the exponent.
__device__ __forceinline__ float score_factor(const ForwardParams& params) {
  return score_unit(params) * kExponentUnit;
}

// `kv` is the thread's first column.
template <int kCount>
__device__ __forceinline__ void apply_score_mod(float (&s)[kCount], const ForwardParams& params, const Rows& rows,
                                                int kv) {
#if FL_HAS_SCORE_MOD
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[4 * j + e] = score_mod(s[4 * j + e], rows.b, rows.h[e / 2], rows.q[e / 2], kv, 8 * j + e % 2, params);
    }
  }
#endif
}

// Only for tiles that the mask or the end of the keys cuts through.
template <int kCount>
__device__ __forceinline__ void apply_mask_mod(float (&s)[kCount], const ForwardParams& params, const Rows& rows,
                                               int kv) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = kv + 8 * j + e % 2;
      bool keep = column < params.kv_len;
#if FL_HAS_MASK_MOD
      keep = keep && mask_mod(rows.b, rows.h[e / 2], rows.q[e / 2], column, params);
#endif
      s[4 * j + e] = keep ? s[4 * j + e] : -FL_INFINITY;
    }
  }
}

}  // namespace flashlift::cuda
