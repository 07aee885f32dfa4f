// The softmax statistics of rows, from their scores and <d_out, v>.
//
// Not from lse and <d_out, out>, even of an f32 output: what rounding does to <d_out, v> cancels in d_p - delta only
// where delta is a sum of the same products. A row of one key shows it, and so does one whose probabilities are nearly
// those of one key.
#pragma once

#include "cuda/kernels/common/gradients.cuh"

namespace flashlift::cuda {

// Of a thread's columns, relative to the row's maximum so far.
struct RowSums {
  float maximum[2] = {-FL_INFINITY, -FL_INFINITY};
  float sum[2] = {0.0f, 0.0f};
  float weighted[2] = {0.0f, 0.0f};  // sum of p * d_p
};

template <int kCount>
__device__ __forceinline__ void sum_tile(float (&s)[kCount], const float (&dp)[kCount], RowSums& sums,
                                         const ForwardParams& params, const Place<false>& place, bool partial) {
  const u32 kept = kept_bits<kCount>(params, place, partial);
  const u32 undropped = undropped_bits<kCount>(params, place);
  float largest[2] = {sums.maximum[0], sums.maximum[1]};
#if FL_GRADIENT_SEARCHES
#pragma unroll 1
#else
#pragma unroll
#endif
  for (int i = 0; i < kCount; ++i) {
    float derivative;
    const float score = score_at(s[i], params, place, i, derivative);
    s[i] = kept >> i & 1 ? score : -FL_INFINITY;
    largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], s[i]);
  }
  float base[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float maximum = quad_max(largest[r]);
    base[r] = maximum == -FL_INFINITY ? 0.0f : maximum;
    const float alpha = exponential((sums.maximum[r] - base[r]) * kExponentUnit);
    const bool first = sums.maximum[r] == -FL_INFINITY;  // then there is nothing to scale but zeros and NaN
    sums.sum[r] *= first ? 1.0f : alpha;
    sums.weighted[r] *= first ? 1.0f : alpha;
    sums.maximum[r] = maximum;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int r = i / 2 % 2;
    const float p = exponential(below_maximum(s[i], base[r]) * kExponentUnit);
    sums.sum[r] += p;
    // A masked key takes no part, whatever its value.
    sums.weighted[r] += p != 0.0f && (undropped >> i & 1) != 0 ? p * (dp[i] * params.dropout_factor) : 0.0f;
  }
}

// What follows from the sums over all columns.
__device__ __forceinline__ RowGradient row_gradient(const ForwardParams& params, float keys_maximum, float sum,
                                                    float weighted, float d_lse, int h) {
  bool nan = sum != sum;
  float maximum = keys_maximum;
#if FL_HAS_SINKS
  for (int i = 0; i < params.sinks_per_head; ++i) {
    const float sink = sink_at(params, h, i);
    nan |= sink != sink;
    maximum = fmaxf(maximum, sink);
  }
#endif
  if (nan || maximum == FL_INFINITY) {
    return {0.0f, FL_NAN, FL_NAN, 0};
  }
  if (maximum == -FL_INFINITY) {
    return {0.0f, 0.0f, 0.0f, 1};
  }
#if FL_HAS_SINKS
  const float scale = exponential((keys_maximum - maximum) * kExponentUnit);
  sum *= scale;
  weighted *= scale;
  for (int i = 0; i < params.sinks_per_head; ++i) {
    sum += exponential((sink_at(params, h, i) - maximum) * kExponentUnit);
  }
#endif
  return {maximum, 1.0f / sum, weighted / sum - d_lse, 0};
}

// Writes the statistics of a thread's two rows.
__device__ __forceinline__ void store_rows(const RowSums& sums, const ForwardParams& params,
                                           const BackwardParams& backward, const Place<false>& place) {
  RowGradient rows[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float d_lse = d_lse_at(backward, place.b, place.h, min(place.rows[r], params.q_len - 1));
    rows[r] = row_gradient(params, sums.maximum[r], quad_sum(sums.sum[r]), quad_sum(sums.weighted[r]), d_lse, place.h);
  }
  RowGradient* const head = row_gradients(params, backward, place.b, place.h);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (threadIdx.x % 4 == 0 && place.rows[r] < params.q_len) {
      head[place.rows[r]] = rows[r];
    }
  }
}

}  // namespace flashlift::cuda
