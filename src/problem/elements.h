// Access to single elements of strided tensors, where speed does not matter: for the oracle, the eager maths and
// checks.
#pragma once

#include "flashlift/tensor.h"
#include "support/half.h"

namespace flashlift::problem {

inline double read_float(const TensorView& view, int64_t offset) {
  switch (view.dtype) {
    case DType::kF16:
      return f16_to_float(static_cast<const uint16_t*>(view.data)[offset]);
    case DType::kBF16:
      return bf16_to_float(static_cast<const uint16_t*>(view.data)[offset]);
    case DType::kF64:
      return static_cast<const double*>(view.data)[offset];
    default:
      return static_cast<const float*>(view.data)[offset];
  }
}

// The offset of [b, h, s] of a rank-4 (or rank-3) tensor; the last dimension follows with its stride.
inline int64_t row_offset(const TensorView& view, int64_t b, int64_t h, int64_t s) {
  return b * view.strides[0] + h * view.strides[1] + s * view.strides[2];
}

// The offset of an element from its index in the dense logical order.
inline int64_t element_offset(const TensorView& view, int64_t index) {
  int64_t offset = 0;
  for (int d = view.rank - 1; d >= 0; --d) {
    offset += index % view.sizes[d] * view.strides[d];
    index /= view.sizes[d];
  }
  return offset;
}

}  // namespace flashlift::problem
