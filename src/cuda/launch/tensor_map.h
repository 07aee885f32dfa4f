// Descriptors by which the bulk copy engine reads a strided tensor tile by tile.
#pragma once

#include "cuda/kernels/common/forward_params.h"
#include "cuda/launch/driver.h"
#include "flashlift/tensor.h"

namespace flashlift::cuda {

// A [batch, head, row, column] tensor of 16-bit elements, read in boxes of `rows` x 64 columns with the 128-byte
// swizzle; what lies outside reads as zero. Errors: kUnsupported where the copy engine cannot read these strides.
Result<TensorMap> encode_tensor_map(const Driver& driver, const TensorView& view, int rows);

}  // namespace flashlift::cuda
