// Captured tensors as compiled code reads them.
#pragma once

#include <algorithm>

#include "cpu/jit/score_function.h"

namespace flashlift::cpu {

inline CaptureView capture_view(const TensorView& tensor) {
  CaptureView view{tensor.data, {}, {}};
  std::copy_n(tensor.sizes.begin(), kMaxRank, view.sizes);
  std::copy_n(tensor.strides.begin(), kMaxRank, view.strides);
  if (tensor.element_count() == 0) {
    // Clamping has nowhere to go in an empty tensor: loads give 0, as the interpreter has it.
    static constexpr int64_t kZeros[1] = {};
    view.data = kZeros;
    std::fill_n(view.sizes, kMaxRank, int64_t{1});
    std::fill_n(view.strides, kMaxRank, int64_t{0});
  }
  return view;
}

}  // namespace flashlift::cpu
