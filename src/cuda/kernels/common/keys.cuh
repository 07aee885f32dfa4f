// The addresses of a query's row of Q, and of a key's rows of K and V.
#pragma once

#include "cuda/kernels/common/forward_params.h"
#include "cuda/kernels/common/ptx.cuh"

namespace flashlift::cuda {

__device__ __forceinline__ const InputElement* query_row(const ForwardParams& params, int b, int h, int row) {
  return static_cast<const InputElement*>(params.q) + b * params.q_strides.batch + h * params.q_strides.head +
         row * params.q_strides.row;
}

// The page that holds a key. The entries of masked keys may have any value, so entries are clamped.
__device__ __forceinline__ int page_of_key(const ForwardParams& params, int b, int kv) {
#if FL_PAGE_SIZE
  const int page = __ldg(params.page_table + b * params.page_table_strides[0] +
                         kv / FL_PAGE_SIZE * params.page_table_strides[1]);
  return max(min(page, params.pages - 1), 0);
#else
  return b;
#endif
}

// The key's row in that page, or in its batch.
__device__ __forceinline__ int row_of_key(int kv) {
#if FL_PAGE_SIZE
  return kv % FL_PAGE_SIZE;
#else
  return kv;
#endif
}

__device__ __forceinline__ const InputElement* key_row(const void* tensor, const Strides& strides,
                                                       const ForwardParams& params, int b, int kv_head, int kv) {
  return static_cast<const InputElement*>(tensor) + page_of_key(params, b, kv) * strides.batch +
         kv_head * strides.head + row_of_key(kv) * strides.row;
}

}  // namespace flashlift::cuda
