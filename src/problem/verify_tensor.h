// Checking the tensors of a call against what a problem says of them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "flashlift/result.h"
#include "flashlift/tensor.h"

namespace flashlift::problem {

struct WantedTensor {
  // Views and spans, since a call of a compiled attention allocates nothing.
  std::string_view name;
  const TensorView& view;
  DType dtype;
  std::span<const int64_t> shape;  // -1: any
  std::string_view role = {};      // what goes before the name of a captured tensor
};

Status verify_tensor(const WantedTensor& wanted);
// The same for one that is written, whose elements must not overlap.
Status verify_output(const WantedTensor& wanted);

}  // namespace flashlift::problem
