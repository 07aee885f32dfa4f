// Checking the tensors of a call against what a problem says of them.
#pragma once

#include <cstdint>
#include <span>

#include "flashlift/result.h"
#include "flashlift/tensor.h"

namespace flashlift::problem {

struct WantedTensor {
  const char* name;
  const TensorView& view;
  DType dtype;
  std::span<const int64_t> shape;  // -1: any; a span, since a call of a compiled attention allocates nothing
};

Status verify_tensor(const WantedTensor& wanted);
// The same for one that is written, whose elements must not overlap.
Status verify_output(const WantedTensor& wanted);

}  // namespace flashlift::problem
