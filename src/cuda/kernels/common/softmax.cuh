// The online softmax over a tile of scores in registers.
//
// Layout, shared by wgmma and mma.sync: a warp owns 16 rows; a thread holds rows lane/4 and lane/4 + 8, and of every 8
// columns the two at 2*(lane%4). Element [4*j + 2*r + c] is row r, column 8*j + c.
#pragma once

#include "cuda/kernels/common/ptx.cuh"

namespace flashlift::cuda {

// How far, in powers of two, the running maximum may be below the true maximum before the accumulators are rescaled.
// See ForwardConfig::maximum_lag.
constexpr float kRescaleThreshold = FL_MAXIMUM_LAG;

// The softmax's exponential and the unit of its arguments: powers of two by the special-function unit for 16-bit
// problems, the accurate natural exponential for f32. In f32, a product of score and log2(e) would lose the last bits.
//
// kLargestOffset: the largest maximum, in that unit, for which one multiply-add scales and shifts a score. The offset
// is rounded, to 2^-12 at the limit. This error cancels only within a tile, since the tiles of a row may have different
// offsets. It does not cancel if the largest probability is rounded to 16 bits for a product, but not for the sum: a
// row of one key with an f32 output shows it. Nor does it cancel in an output that is not divided by the row's sum. f32
// scores are not scaled, and their difference from the maximum is exact.
#if FL_INPUT_F32
constexpr float kExponentUnit = 1.0f;
constexpr float kLargestOffset = 3.4028235e38f;
__device__ __forceinline__ float exponential(float x) { return expf(x); }
#else
constexpr float kExponentUnit = kLog2e;
constexpr float kLargestOffset = 4096.0f;
__device__ __forceinline__ float exponential(float x) { return exp2_approx(x); }
#endif

// Whether a row's maximum, which is given in kExponentUnit, is subtracted from its scores before they are scaled. The
// kernels for few queries (FL_SPLIT) always do that, since they wait for memory anyway.
__device__ __forceinline__ bool subtracts_first(float maximum) {
  constexpr bool kAlways = !FL_INPUT_F32 && (FL_SPLIT || !FL_NORMALIZE);
  return kAlways || !(fabsf(maximum) <= kLargestOffset);
}

// The difference of a score from its row's maximum. If a score ends in a product, the compiler would fuse the product
// with the subtraction. The product would then be exact here, but rounded in the maximum: a score of 1e38 would differ
// from itself by 1e30.
__device__ __forceinline__ float below_maximum(float score, float maximum) { return __fsub_rn(score, maximum); }

// Transposes a 4 x 4 matrix within a quad: each of the four threads passes a column and gets a row.
__device__ __forceinline__ void transpose_quad(u32 (&x)[4]) {
  const bool odd = threadIdx.x & 1;
  const bool upper = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 received = __shfl_xor_sync(0xffffffff, odd ? x[i] : x[i + 1], 1);
    x[i] = odd ? received : x[i];
    x[i + 1] = odd ? x[i + 1] : received;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const u32 received = __shfl_xor_sync(0xffffffff, upper ? x[i] : x[i + 2], 2);
    x[i] = upper ? received : x[i];
    x[i + 2] = upper ? x[i + 2] : received;
  }
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// The thread's two rows.
struct Rows {
  int b;
  int h[2];
  int q[2];
};

struct RowState {
  float maximum[2] = {-FL_INFINITY, -FL_INFINITY};  // in units of the scores
  float sum[2] = {0.0f, 0.0f};                  // of this thread's columns only
  bool large = true;  // subtracts_first for any row of the warp, or a maximum is infinite
};

// For rows whose maximum is infinite or too large for one multiply-add: rows without a key so far, rows masked by a large
// constant, and those whose scores overflowed.
template <int kCount>
__device__ __forceinline__ void subtract_maximum(float (&s)[kCount], const float (&maximum)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float m = maximum[i / 2 % 2];
    s[i] = below_maximum(s[i], fabsf(m) < FL_INFINITY ? m : 0.0f);
  }
}

// The first half of a tile's softmax: what its exponentials need.
struct TileSoftmax {
  float alpha[2] = {1.0f, 1.0f};  // each row's accumulator must be multiplied by it
  bool rescale;                   // whether any row of the warp needs that
};

// Updates the maxima. Most tiles change none: one vote shows that, whereas a row's maximum takes exchanges between its
// four threads, for which the exponentials would have to wait.
template <int kCount>
__device__ __forceinline__ TileSoftmax update_maxima(const float (&s)[kCount], RowState& state, float factor) {
  float largest[2][2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Two chains per row: with one warp per scheduler, nothing else hides the latency here.
    largest[r][0] = s[2 * r];
    largest[r][1] = s[2 * r + 1];
#pragma unroll
    for (int j = 1; j < kCount / 4; ++j) {
      largest[r][0] = fmaxf(largest[r][0], s[4 * j + 2 * r]);
      largest[r][1] = fmaxf(largest[r][1], s[4 * j + 2 * r + 1]);
    }
    largest[r][0] = fmaxf(largest[r][0], largest[r][1]);
  }
  const auto grows = [&](int r, float maximum) {
    return (maximum - state.maximum[r]) * factor > kRescaleThreshold;
  };
  TileSoftmax tile;
  tile.rescale = __any_sync(0xffffffff, grows(0, largest[0][0]) || grows(1, largest[1][0]));
  if (tile.rescale) {
    bool large = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float maximum = quad_max(largest[r][0]);
      if (grows(r, maximum)) {
        tile.alpha[r] = exponential((state.maximum[r] - maximum) * factor);
        state.maximum[r] = maximum;
      }
      large |= subtracts_first(state.maximum[r] * factor);
    }
    state.large = __any_sync(0xffffffff, large);
  }
  return tile;
}

// Replaces scores by p = exponential(factor * (s - maximum)) and updates the sums.
template <int kCount>
__device__ __forceinline__ void take_exponentials(float (&s)[kCount], RowState& state, float factor,
                                                  const TileSoftmax& tile) {
  float offset[2] = {-state.maximum[0] * factor, -state.maximum[1] * factor};
  if (state.large) {
    subtract_maximum(s, state.maximum);
    offset[0] = offset[1] = 0.0f;
  }
  float partial[2][2] = {};
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = e / 2;
      float& x = s[4 * j + e];
      x = fmaf(x, factor, offset[r]);
      x = exponential(x);
      partial[r][e % 2] += x;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    state.sum[r] = fmaf(state.sum[r], tile.alpha[r], partial[r][0] + partial[r][1]);
  }
}

template <int kCount>
__device__ __forceinline__ void rescale_rows(float (&accumulator)[kCount], const float (&alpha)[2]) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      accumulator[4 * j + e] *= alpha[e / 2];
    }
  }
}

// Rounds p to 16 bits, in the order in which a product takes its A operand from registers.
template <int kCount>
__device__ __forceinline__ void pack_probabilities(const float (&s)[kCount], u32 (&p)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    p[i] = pack_half(s[2 * i], s[2 * i + 1]);
  }
}

}  // namespace flashlift::cuda
