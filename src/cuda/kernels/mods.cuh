// Applies the problem's programs to a tile of scores in registers (layout: softmax.cuh).
#pragma once

#include "forward_params.h"
#include "program.cuh"
#include "ptx.cuh"
#include "softmax.cuh"

namespace flashlift::cuda {

// What the scores have to be multiplied by in the exponent: a score_mod sees scaled scores and may leave a last constant
// factor to the softmax (FL_SCORE_UNIT); without one, the scale is folded into the softmax.
__device__ __forceinline__ float score_factor(const ForwardParams& params) {
#if FL_HAS_SCORE_MOD
  return FL_SCORE_UNIT * kExponentUnit;
#else
  return params.scale * kExponentUnit;
#endif
}

// `q` is the thread's first row, `kv` its first column.
template <int kCount>
__device__ __forceinline__ void apply_score_mod(float (&s)[kCount], const ForwardParams& params, int b, int h, int q,
                                                int kv) {
#if FL_HAS_SCORE_MOD
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[4 * j + e] = score_mod(s[4 * j + e], b, h, q + (e / 2) * 8, kv, 8 * j + e % 2, params);
    }
  }
#endif
}

// Only for tiles that the mask or the end of the keys cuts through.
template <int kCount>
__device__ __forceinline__ void apply_mask_mod(float (&s)[kCount], const ForwardParams& params, int b, int h, int q,
                                               int kv) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = kv + 8 * j + e % 2;
      bool keep = column < params.kv_len;
#if FL_HAS_MASK_MOD
      keep = keep && mask_mod(b, h, q + (e / 2) * 8, column, params);
#endif
      s[4 * j + e] = keep ? s[4 * j + e] : -FL_INFINITY;
    }
  }
}

}  // namespace flashlift::cuda
