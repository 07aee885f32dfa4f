// Descriptors for the bulk copy engine, which reads a strided tensor in tiles.
#pragma once

#include "cuda/kernels/common/forward_params.h"
#include "cuda/launch/driver.h"
#include "flashlift/tensor.h"

namespace flashlift::cuda {

// How many bytes the L2 cache reads from memory where a copy misses it.
enum class L2Promotion : uint8_t { k128 = 2, k256 = 3 };  // as the driver numbers them

// A [batch, head, row, column] tensor of 16-bit elements, read in boxes of `rows` x `columns`: 64 columns with the
// 128-byte swizzle, 32 or 16 with the 64- or 32-byte one. Elements outside of the tensor are read as zero. Errors:
// kUnsupported if the copy engine cannot read these strides.
Result<TensorMap> encode_tensor_map(const Driver& driver, const TensorView& view, int rows, int columns,
                                    L2Promotion promotion = L2Promotion::k128);

}  // namespace flashlift::cuda
