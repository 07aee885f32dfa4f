// Tiles of the portable backward kernels.
#pragma once

#include "cuda/kernels/common/gradients.cuh"
#include "cuda/kernels/common/scheduler.cuh"
#include "cuda/kernels/sm80/products.cuh"

namespace flashlift::cuda {

using TileValues = float[FL_BLOCK_N / 2];  // a thread's, of 16 rows a warp

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
