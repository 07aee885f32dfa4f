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

// A thread's gradients of one element after the other. Neighbouring scores, or diagonals, often read the same element,
// such as the bias of a block or of a bucket of distances: their sum stays in a register.
struct ElementSum {
  long long offset;  // the element
  float sum;
};

__device__ __forceinline__ void flush(ElementSum& element, const CaptureGradient& gradient) {
  if (element.sum != 0.0f) {
    add_exactly(static_cast<unsigned long long*>(gradient.sums) + element.offset * kExactWords, element.sum);
  }
  element.sum = 0.0f;
}

template <typename... Indices>
__device__ __forceinline__ void add_to_element(ElementSum& element, float value, const CaptureGradient& gradient,
                                               Indices... indices) {
  if (value == 0.0f) {
    return;
  }
  const long long offset = gradient_offset(gradient, indices...);
  if (offset != element.offset) {
    flush(element, gradient);
    element.offset = offset;
  }
  element.sum += value;
}

// At the end. All threads of a warp must call it: if all have the same element, one adds for all.
__device__ __forceinline__ void flush_warp(ElementSum& element, const CaptureGradient& gradient) {
  if (__all_sync(0xffffffff, element.offset == __shfl_sync(0xffffffff, element.offset, 0))) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      element.sum += __shfl_xor_sync(0xffffffff, element.sum, step);
    }
    element.sum = threadIdx.x % 32 == 0 ? element.sum : 0.0f;
  }
  flush(element, gradient);
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
