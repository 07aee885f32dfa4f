// Descriptors for the bulk copy engine, which reads a strided tensor in tiles.
#pragma once

#include "cuda/kernels/common/forward_params.h"
#include "cuda/launch/driver.h"
#include "flashlift/tensor.h"

namespace flashlift::cuda {

// A [batch, head, row, column] tensor of 16-bit elements, read in boxes of `rows` x `columns`: 64 columns with the
// 128-byte swizzle, 32 or 16 with the 64- or 32-byte one. Elements outside of the tensor are read as zero. Errors:
// kUnsupported if the copy engine cannot read these strides.
Result<TensorMap> encode_tensor_map(const Driver& driver, const TensorView& view, int rows, int columns = 64);

}  // namespace flashlift::cuda
