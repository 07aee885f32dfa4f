// Computes probabilities and the gradients of scores from a tile of <q, k> and a tile of <d_out, v>, for the backward
// kernels.
//
// One kernel has queries as rows of its tiles and the other has keys, so that each keeps its sums in registers; both
// use the layout of softmax.cuh. A thread has at most 32 elements; one bit per element says whether it is kept.
#pragma once

#include "cuda/kernels/common/gradients.cuh"
#include "cuda/kernels/common/scheduler.cuh"
#include "cuda/kernels/sm80/products.cuh"

namespace flashlift::cuda {

using TileValues = float[FL_BLOCK_N / 2];  // a thread's, of 16 rows a warp

// s: products <q, k>, then probabilities after dropout. dp: products <d_out, v>, then the gradients of scaled products.
// row_at(i): the row's statistics. add(i, ds, product): receives the gradient of each element.
template <int kCount, bool kRowsAreKeys, typename RowAt, typename Add>
__device__ __forceinline__ void finish_tile(float (&s)[kCount], float (&dp)[kCount], const ForwardParams& params,
                                            const Place<kRowsAreKeys>& place, bool partial, const RowAt& row_at,
                                            const Add& add) {
  const u32 kept = kept_bits<kCount>(params, place, partial);
  const u32 undropped = undropped_bits<kCount>(params, place);
#if FL_GRADIENT_SEARCHES
#pragma unroll 1
#else
#pragma unroll
#endif
  for (int i = 0; i < kCount; ++i) {
    const float product = s[i];
    const RowGradient row = row_at(i);
    float derivative;
    const float score = score_at(product, params, place, i, derivative);
    const bool stays = undropped >> i & 1;
    const float p = kept >> i & 1 ? exponential(below_maximum(score, row.shift) * kExponentUnit) * row.factor : 0.0f;
    const float d_p = stays ? dp[i] * params.dropout_factor : 0.0f;
    // A masked element's d_p, and what its score changes by, may be anything.
    const float ds = p != 0.0f ? p * (d_p - row.delta) : 0.0f;
    s[i] = stays ? p : 0.0f;
    dp[i] = p != 0.0f ? ds * derivative : 0.0f;
    add(i, ds, product);
  }
}

// Rows [row, ...) of d_out, or of the remainder of its upper half.
template <int kRows>
__device__ __forceinline__ void load_d_out(InputElement* tile, const ForwardParams& params,
                                           const BackwardParams& backward, const void* d_out, int b, int h, int row) {
  const Strides& strides = backward.d_out_strides;
  const InputElement* head = static_cast<const InputElement*>(d_out) + b * strides.batch + h * strides.head;
  load_tile<kRows, FL_V_DIM, kVRow>(
      tile, [&](int r) { return head + r * strides.row; }, strides.column, row, params.q_len, FL_VALUE_DIM,
      backward.vector_d_out);
}

// Whether d_out has a remainder besides its upper half; the same for all threads.
__device__ __forceinline__ bool has_low_half(const BackwardParams& backward) {
#if FL_D_OUT_HALVES
  return *backward.d_out_has_low != 0;
#else
  return false;
#endif
}

// Waits for what all threads have begun to copy. Not for loops over tiles.
__device__ __forceinline__ void finish_copies() {
  copy_commit();
  copy_wait<0>();
  __syncthreads();
}

}  // namespace flashlift::cuda
