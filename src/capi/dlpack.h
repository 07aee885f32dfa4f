// DLPack tensors as Flashlift's views.
#pragma once

#include <dlpack/dlpack.h>

#include <string_view>

#include "flashlift/attention.h"
#include "flashlift/result.h"
#include "flashlift/tensor.h"

namespace flashlift::capi {

// The kind of a device that the caller names. Refuses kinds that do not exist here, and CPUs with a number.
Result<DeviceKind> to_device_kind(DLDevice device);

// Errors, which name the tensor: NULL, another device than `device` (all CPUs are one), an element type or a rank that
// is not supported.
Result<TensorView> to_view(const DLTensor* tensor, std::string_view name, DLDevice device);

// The element type of a DType. bool is DLPack's own since 0.8 (code 6).
DLDataType to_dlpack(DType dtype);

}  // namespace flashlift::capi
