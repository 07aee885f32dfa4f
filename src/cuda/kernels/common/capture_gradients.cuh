// Adds to the gradients of captured tensors: f32 sums in memory, at the indices from which the elements were read, with
// the same clamping. The additions are atomic, so that their order, and the last bits of the sums, change between runs.
#pragma once

#include "cuda/kernels/common/backward_params.h"
#include "cuda/kernels/common/captures.cuh"
#include "cuda/kernels/common/softmax.cuh"

namespace flashlift::cuda {

template <typename... Indices>
__device__ __forceinline__ float* gradient_at(const CaptureArgument& gradient, Indices... indices) {
  long long offset = 0;
  int d = 0;
  ((offset += clamp_index(gradient, d, indices) * gradient.strides[d], ++d), ...);
  return static_cast<float*>(const_cast<void*>(gradient.data)) + offset;
}

// kShared: all rows of the warp use the same element, so that the warp first sums over its rows. Whole warps must call
// it.
template <bool kShared, typename... Indices>
__device__ __forceinline__ void add_to_gradient(float value, const CaptureArgument& gradient, Indices... indices) {
  if (kShared) {
    value += __shfl_xor_sync(0xffffffff, value, 4);
    value += __shfl_xor_sync(0xffffffff, value, 8);
    value += __shfl_xor_sync(0xffffffff, value, 16);
  }
  if (value != 0.0f && (!kShared || threadIdx.x % 32 < 4)) {
    atomicAdd(gradient_at(gradient, indices...), value);
  }
}

// The sum over a row's four threads.
template <typename... Indices>
__device__ __forceinline__ void add_row_to_gradient(float sum, bool inside, const CaptureArgument& gradient,
                                                    Indices... indices) {
  sum = quad_sum(sum);
  if (inside && sum != 0.0f && threadIdx.x % 4 == 0) {
    atomicAdd(gradient_at(gradient, indices...), sum);
  }
}

}  // namespace flashlift::cuda
