// The smallest and largest element of each block of a captured tensor, so that a mask that reads it can be decided for
// a tile at once. One pass over the tensor, O(N).
#pragma once

#include "captures.cuh"

namespace flashlift::cuda {

// One warp a block of kCaptureBlock elements; blocks of a row of the last dimension are neighbours.
template <typename Element>
FL_OP void capture_bounds(const CaptureArgument& capture, int rank, i64* bounds, i64 total_blocks) {
  const int row_blocks = (capture.sizes[rank - 1] + kCaptureBlock - 1) / kCaptureBlock;
  const i64 warps = static_cast<i64>(gridDim.x) * blockDim.x / 32;
  for (i64 block = (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x) / 32; block < total_blocks;
       block += warps) {
    i64 row = block / row_blocks;
    i64 offset = 0;
    for (int d = rank - 2; d >= 0; --d) {
      offset += row % capture.sizes[d] * capture.strides[d];
      row /= capture.sizes[d];
    }
    i64 smallest = kLowest<i64> + 1;
    smallest = -smallest;
    i64 largest = kLowest<i64>;
    for (int i = threadIdx.x % 32; i < kCaptureBlock; i += 32) {
      const int index = static_cast<int>(block % row_blocks) * kCaptureBlock + i;
      if (index < capture.sizes[rank - 1]) {
        const auto* data = static_cast<const typename Element::Bits*>(capture.data);
        const i64 value = static_cast<i64>(Element::scalar(data[offset + index * capture.strides[rank - 1]]));
        smallest = min(smallest, value);
        largest = max(largest, value);
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      smallest = min(smallest, __shfl_xor_sync(0xffffffff, smallest, step));
      largest = max(largest, __shfl_xor_sync(0xffffffff, largest, step));
    }
    if (threadIdx.x % 32 == 0) {
      bounds[2 * block] = smallest;
      bounds[2 * block + 1] = largest;
    }
  }
}

}  // namespace flashlift::cuda
