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
  InputElement* const of_head = static_cast<InputElement*>(tensor) + b * strides.batch + head * strides.head;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = consumer.row(r);
#pragma unroll
    for (int first = 0; first < kCount / 4; first += 4) {
      u32 pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (first + i) + 2 * r;
        pairs[i] = first + i < kCount / 4 ? pack_half(sums[at] * factor, sums[at + 1] * factor) : 0;
      }
      transpose_quad(pairs);
      if (row < rows) {
        store_eight<kColumns>(of_head + row * strides.row, strides.column, vector,
                              8 * (first + static_cast<int>(threadIdx.x) % 4), pairs);
      }
    }
  }
}

}  // namespace flashlift::cuda
