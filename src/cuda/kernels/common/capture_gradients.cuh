// Adds to the gradients of captured tensors, at the indices from which the elements were read, with the same clamping.
#pragma once

#include "cuda/kernels/common/backward_params.h"
#include "cuda/kernels/common/block_sums.cuh"
#include "cuda/kernels/common/softmax.cuh"

namespace flashlift::cuda {

template <typename... Indices>
__device__ __forceinline__ void add_to_gradient(float value, const CaptureGradient& gradient, Indices... indices) {
  if (value != 0.0f) {
    add_exactly(exact_words(gradient, gradient_offset(gradient, indices...)), value);
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
  u32 element;
  float sum;
};

// Where sums go that have no table in shared memory.
struct GlobalSums {
  template <u32 kMoves, typename... Indices>
  __device__ __forceinline__ void add(u32 element, float value, const CaptureGradient& gradient,
                                      Indices... indices) const {
    if (value != 0.0f) {
      add_exactly(exact_words(gradient, offset_of_element<kMoves>(gradient, element, indices...)), value);
    }
  }
};

// kMoves, indices: as for offset_of_element. All elements of the thread have the other indices in common.
template <u32 kMoves, typename Sums, typename... Indices>
__device__ __forceinline__ void add_to_element(ElementSum& element, float value, Sums& sums,
                                               const CaptureGradient& gradient, Indices... indices) {
  if (value == 0.0f) {
    return;
  }
  const u32 next = element_of_block<kMoves>(gradient, indices...);
  if (next != element.element) {
    sums.template add<kMoves>(element.element, element.sum, gradient, indices...);
    element = {next, 0.0f};
  }
  element.sum += value;
}

// At the end. All threads of a warp must call it: if all have the same element, one adds for all.
template <u32 kMoves, typename Sums, typename... Indices>
__device__ __forceinline__ void flush_warp(ElementSum& element, Sums& sums, const CaptureGradient& gradient,
                                           Indices... indices) {
  if (__all_sync(0xffffffff, element.element == __shfl_sync(0xffffffff, element.element, 0))) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      element.sum += __shfl_xor_sync(0xffffffff, element.sum, step);
    }
    element.sum = threadIdx.x % 32 == 0 ? element.sum : 0.0f;
  }
  sums.template add<kMoves>(element.element, element.sum, gradient, indices...);
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
