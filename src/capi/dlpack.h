// DLPack tensors as Flashlift's views.
#pragma once

#include <dlpack/dlpack.h>

#include <string_view>

#include "flashlift/result.h"
#include "flashlift/tensor.h"

namespace flashlift::capi {

// Errors, which name the tensor: NULL, another device than `device`, an element type or a rank that is not supported.
Result<TensorView> to_view(const DLTensor* tensor, std::string_view name, DLDevice device);

// The element type of a DType. bool is DLPack's own since 0.8 (code 6).
DLDataType to_dlpack(DType dtype);

}  // namespace flashlift::capi
