// Converts tensors to the views that kernels read.
#pragma once

#include <algorithm>

#include "cpu/score_function.h"
#include "problem/sinks.h"

namespace flashlift::cpu {

inline CaptureView capture_view(const TensorView& tensor) {
  CaptureView view{tensor.data, {}, {}};
  std::copy_n(tensor.sizes.begin(), kMaxRank, view.sizes);
  std::copy_n(tensor.strides.begin(), kMaxRank, view.strides);
  if (tensor.element_count() == 0) {
    // There is no index to clamp to in an empty tensor: loads give 0, as in the interpreter.
    static constexpr int64_t kZeros[1] = {};
    view.data = kZeros;
    std::fill_n(view.sizes, kMaxRank, int64_t{1});
    std::fill_n(view.strides, kMaxRank, int64_t{0});
  }
  return view;
}

// The rows of one head, starting with `row`.
inline MatrixView head_rows(const TensorView& tensor, int64_t b, int64_t h, int64_t row) {
  const int64_t offset = b * tensor.strides[0] + h * tensor.strides[1] + row * tensor.strides[2];
  return {static_cast<const std::byte*>(tensor.data) + offset * static_cast<int64_t>(size_in_bytes(tensor.dtype)),
          tensor.dtype, tensor.strides[2], tensor.strides[3]};
}

// The matrix, starting with this row.
inline MatrixView row_of(const MatrixView& matrix, int64_t row) {
  const int64_t bytes = row * matrix.row_stride * static_cast<int64_t>(size_in_bytes(matrix.dtype));
  return {static_cast<const std::byte*>(matrix.data) + bytes, matrix.dtype, matrix.row_stride, matrix.column_stride};
}

inline MatrixView transposed(const MatrixView& matrix) {
  return {matrix.data, matrix.dtype, matrix.column_stride, matrix.row_stride};
}

inline float sink_at(const TensorView& sinks, int64_t h, int64_t r) {
  return static_cast<const float*>(sinks.data)[problem::sink_offset(sinks, h, r)];
}

}  // namespace flashlift::cpu
