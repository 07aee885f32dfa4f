// What the Hopper kernels for gradients of captured tensors share: from the products of a tile to gradients of its scores.
#pragma once

#include "cuda/kernels/common/gradients.cuh"
#include "cuda/kernels/sm90/backward_pipeline.cuh"
#include "wgmma.cuh"

namespace flashlift::cuda {

using TileValues = float[FL_BLOCK_N / 2];  // a thread's
using TilePlace = Place<kRowsAreKeys>;

// After the barriers have been initialised by the block's first thread.
__device__ __forceinline__ void begin(const ForwardParams& params, const TensorMap& d_out_map) {
  if (threadIdx.x == 0) {
    prefetch_map(params.q_map);
    prefetch_map(params.k_map);
    prefetch_map(params.v_map);
    prefetch_map(d_out_map);
  }
  __syncthreads();
}

// Calls add(i, gradient of the element's score, product) for each element of a tile. row_at(i): the statistics of its
// query.
template <typename RowAt, typename Add>
__device__ __forceinline__ void for_each_gradient(const TileValues& s, const TileValues& dp,
                                                  const ForwardParams& params, const TilePlace& place, bool partial,
                                                  const RowAt& row_at, const Add& add) {
  constexpr int kCount = FL_BLOCK_N / 2;
  const u32 kept = kept_bits<kCount>(params, place, partial);
  const u32 undropped = undropped_bits<kCount>(params, place);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const RowGradient row = row_at(i);
    float derivative;
    const float score = score_at(s[i], params, place, i, derivative);
    const float p = exponential(below_maximum(score, row.shift) * kExponentUnit) * row.factor;
    const float d_p = undropped >> i & 1 ? dp[i] * params.dropout_factor : 0.0f;
    // What a masked element has of them may be anything.
    add(i, (kept >> i & 1) != 0 ? p * (d_p - row.delta) : 0.0f, s[i]);
  }
}

}  // namespace flashlift::cuda
