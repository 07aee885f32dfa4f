// Adds to the gradients of captured tensors, at the indices from which the elements were read, with the same clamping.
#pragma once

#include "cuda/kernels/common/backward_params.h"
#include "cuda/kernels/common/captures.cuh"
#include "cuda/kernels/common/exact_sum.cuh"
#include "cuda/kernels/common/softmax.cuh"

namespace flashlift::cuda {

// The element's place among all of the tensor.
template <typename... Indices>
__device__ __forceinline__ long long gradient_offset(const CaptureGradient& gradient, Indices... indices) {
  long long offset = 0;
  int d = 0;
  ((offset += clamp_index(gradient, d, indices) * gradient.strides[d], ++d), ...);
  return offset;
}

template <typename... Indices>
__device__ __forceinline__ void add_to_gradient(float value, const CaptureGradient& gradient, Indices... indices) {
  if (value != 0.0f) {
    add_exactly(static_cast<unsigned long long*>(gradient.sums) + gradient_offset(gradient, indices...) * kExactWords,
                value);
  }
}

// The sum over a row's four threads.
template <typename... Indices>
__device__ __forceinline__ void add_row_to_gradient(float sum, bool inside, const CaptureGradient& gradient,
                                                    Indices... indices) {
  sum = quad_sum(sum);
  if (inside && threadIdx.x % 4 == 0) {
    add_to_gradient(sum, gradient, indices...);
  }
}

// Of an element that no other thread has, unless the sums are exact.
template <typename... Indices>
__device__ __forceinline__ void store_gradient(float value, const CaptureGradient& gradient, Indices... indices) {
  if (gradient.exact != 0) {
    add_to_gradient(value, gradient, indices...);
  } else {
    static_cast<float*>(gradient.sums)[gradient_offset(gradient, indices...)] = value;
  }
}

}  // namespace flashlift::cuda
