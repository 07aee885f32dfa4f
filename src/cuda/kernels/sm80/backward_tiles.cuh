// What the backward kernels make of a tile of <q, k> and one of <d_out, v>: probabilities and the gradients of scores.
//
// One kernel has queries as rows of its tiles and the other has keys, so that what it sums stays in its registers; the
// layout is softmax.cuh's for both. A thread has at most 32 elements: a bit each says which are kept.
#pragma once

#include "cuda/kernels/common/dropout.cuh"
#include "cuda/kernels/common/rows.cuh"
#include "cuda/kernels/common/scheduler.cuh"
#include "cuda/kernels/sm80/products.cuh"
#include "gradient.cuh"

namespace flashlift::cuda {

// Which scores a thread has: its two rows, and its first column.
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


// Bit i: is element i inside, and kept by mask_mod.
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

// Bit i: does dropout leave element i.
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
// row_at(i): the row's statistics. add(i, ds, product): what to do with an element's own gradient.
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
    const float p = kept >> i & 1 ? exponential((score - row.shift) * kExponentUnit) * row.factor : 0.0f;
    const float d_p = stays ? dp[i] * params.dropout_factor : 0.0f;
    // A masked element's d_p, and what its score changes by, may be anything.
    const float ds = p != 0.0f ? p * (d_p - row.delta) : 0.0f;
    s[i] = stays ? p : 0.0f;
    dp[i] = p != 0.0f ? ds * derivative : 0.0f;
    add(i, ds, product);
  }
}

// Rows [row, ...) of d_out, or of what its upper half leaves.
template <int kRows>
__device__ __forceinline__ void load_d_out(InputElement* tile, const ForwardParams& params,
                                           const BackwardParams& backward, const void* d_out, int b, int h, int row) {
  const Strides& strides = backward.d_out_strides;
  const InputElement* head = static_cast<const InputElement*>(d_out) + b * strides.batch + h * strides.head;
  load_tile<kRows, FL_V_DIM, kVRow>(
      tile, [&](int r) { return head + r * strides.row; }, strides.column, row, params.q_len, FL_VALUE_DIM,
      backward.vector_d_out);
}

// Whether d_out is more than its upper half; the same for all threads.
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
