// Operations of all backward kernels on a thread's elements of a tile (layout: softmax.cuh).
//
// One kernel has queries as rows of its tiles and the other has keys, so that each keeps its sums in registers.
#pragma once

#include "cuda/kernels/common/dropout.cuh"
#include "cuda/kernels/common/rows.cuh"
#include "gradient.cuh"

namespace flashlift::cuda {

// The position of a thread's scores: its two rows, and its first column.
template <bool kRowsAreKeys>
struct Place {
  int b;
  int h;
  int rows[2];
  int column;

  __device__ __forceinline__ int row_of(int i) const { return rows[i / 2 % 2]; }
  __device__ __forceinline__ int column_of(int i) const { return column + i / 4 * 8 + i % 2; }
  __device__ __forceinline__ int q(int i) const { return kRowsAreKeys ? column_of(i) : row_of(i); }
  __device__ __forceinline__ int kv(int i) const { return kRowsAreKeys ? row_of(i) : column_of(i); }
};

// Bit i: whether element i is inside the tensor, and mask_mod keeps it.
template <int kCount, bool kRowsAreKeys>
__device__ __forceinline__ u32 kept_bits(const ForwardParams& params, const Place<kRowsAreKeys>& place, bool partial) {
  static_assert(kCount <= 32, "a bit for each element");
  u32 bits = 0xffffffff;
  if (partial) {
    bits = 0;
#if FL_MASK_SEARCHES
#pragma unroll 1
#else
#pragma unroll
#endif
    for (int i = 0; i < kCount; ++i) {
      const int q = place.q(i);
      const int kv = place.kv(i);
      bool keep = q < params.q_len && kv < params.kv_len;
#if FL_HAS_MASK_MOD
      keep &= mask_mod(mask_row(place.b, place.h, q, params), mask_column(place.b, kv, params), place.b, place.h, q, kv,
                       0, params);
#endif
      bits |= static_cast<u32>(keep) << i;
    }
  }
  return bits;
}

// Bit i: whether dropout keeps element i.
template <int kCount, bool kRowsAreKeys>
__device__ __forceinline__ u32 undropped_bits(const ForwardParams& params, const Place<kRowsAreKeys>& place) {
  u32 bits = 0xffffffff;
#if FL_DROPOUT
  bits = 0;
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) {
    bits |= static_cast<u32>(keeps_key(place.b, place.h, place.q(i), place.kv(i), params)) << i;
  }
#endif
  return bits;
}

// The score of an element from its product, and what it changes by as the scaled product does.
template <bool kRowsAreKeys>
__device__ __forceinline__ float score_at(float product, const ForwardParams& params, const Place<kRowsAreKeys>& place,
                                          int i, float& derivative) {
  const int q = place.q(i);
  const int kv = place.kv(i);
  return score_gradient(product, gradient_row(place.b, place.h, q, params), gradient_column(place.b, kv, params),
                        place.b, place.h, q, kv, 0, params, derivative);
}

// s: products <q, k>, then probabilities after dropout. dp: products <d_out, v>, then the gradients of scaled products.
// A thread has at most 32 elements (kept_bits). row_at(i): the statistics of the element's query. add(i, ds, product):
// receives the gradient of each element.
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
    // What a select leaves out gets no gradient, even if ds is NaN.
    dp[i] = p != 0.0f && (!FL_DERIVATIVE_SELECTS || derivative != 0.0f) ? ds * derivative : 0.0f;
    add(i, ds, product);
  }
}

// Columns [first, ...) of a gradient's row from a thread's accumulators of row r.
template <int kCount>
__device__ __forceinline__ void store_gradient_row(const float (&sums)[kCount], int r, float factor, void* row_address,
                                                   long long column_stride, bool paired, int first, int columns) {
  InputElement* const row = static_cast<InputElement*>(row_address);
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const int column = first + 8 * j + static_cast<int>(threadIdx.x) % 4 * 2;
    const float x = sums[4 * j + 2 * r] * factor;
    const float y = sums[4 * j + 2 * r + 1] * factor;
    if (paired && column + 1 < columns) {
#if FL_INPUT_F32
      *reinterpret_cast<float2*>(row + column) = make_float2(x, y);
#else
      *reinterpret_cast<u32*>(row + column) = pack_half(x, y);
#endif
    } else {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (column + c < columns) {
#if FL_INPUT_F32
          row[(column + c) * column_stride] = c == 0 ? x : y;
#else
          row[(column + c) * column_stride] = static_cast<InputElement>(pack_half(c == 0 ? x : y, 0.0f));
#endif
        }
      }
    }
  }
}

}  // namespace flashlift::cuda
