// How the Hopper backward kernels store the gradients of a block's rows.
#pragma once

#include "cuda/kernels/sm90/backward_consumer.cuh"

namespace flashlift::cuda {

// Eight neighbours of a gradient's row of kColumns, in pairs, from `column` on. `vector`: the tensor's rows are
// contiguous and begin at multiples of 16 bytes.
template <int kColumns>
__device__ __forceinline__ void store_eight(InputElement* row, long long stride, bool vector, int column,
                                            const u32 (&pairs)[4]) {
  if (vector && column + 8 <= kColumns) {
    *reinterpret_cast<uint4*>(row + column) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (column + i < kColumns) {
      row[(column + i) * stride] = static_cast<InputElement>(pairs[i / 2] >> (i % 2 * 16));
    }
  }
}

// The gradients of a consumer's rows of a head, of which `rows` exist. Thread t of a quad has columns 8j + 2t of every
// j; of four j at a time it collects the 8 columns of j = t.
template <int kColumns, int kCount>
__device__ __forceinline__ void store_gradient(const float (&sums)[kCount], const Consumer& consumer, float factor,
                                               void* tensor, const Strides& strides, bool vector, int b, int head,
                                               int rows) {
  constexpr int kEights = kCount / 4;
  constexpr int kPieces = (kEights + 3) / 4;
  InputElement* const of_head = static_cast<InputElement*>(tensor) + b * strides.batch + head * strides.head;
  const int quad = static_cast<int>(threadIdx.x) % 4;
  const auto piece_of_row = [&](int r, int piece, u32 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int eight = 4 * piece + i;
      const int at = 4 * eight + 2 * r;
      pairs[i] = eight < kEights ? pack_half(sums[at] * factor, sums[at + 1] * factor) : 0;
    }
    transpose_quad(pairs);
  };
  if (kColumns % 8 == 0 && vector) {
    // All exchanges come before the first branch, so that they overlap.
    u32 pairs[2][kPieces][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        piece_of_row(r, piece, pairs[r][piece]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = consumer.row(r);
      InputElement* const to = of_head + row * strides.row + 8 * quad;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const bool has_columns = 32 * (piece + 1) <= kColumns || 32 * piece + 8 * quad < kColumns;
        if (row < rows && has_columns) {
          const u32(&x)[4] = pairs[r][piece];
          *reinterpret_cast<uint4*>(to + 32 * piece) = make_uint4(x[0], x[1], x[2], x[3]);
        }
      }
    }
    return;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = consumer.row(r);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      u32 pairs[4];
      piece_of_row(r, piece, pairs);
      if (row < rows) {
        store_eight<kColumns>(of_head + row * strides.row, strides.column, vector, 8 * (4 * piece + quad), pairs);
      }
    }
  }
}

}  // namespace flashlift::cuda
