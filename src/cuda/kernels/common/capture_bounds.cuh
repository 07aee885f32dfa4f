// Computes the smallest and the largest element of each block of a captured tensor, in one pass, so that a mask that
// reads it can be evaluated for a whole tile.
#pragma once

#include "cuda/kernels/common/captures.cuh"

namespace flashlift::cuda {

// The bounds of the elements read so far.
template <typename Scalar>
struct Extremes {
  Scalar smallest = ~kLowest<Scalar>;
  Scalar largest = kLowest<Scalar>;

  FL_OP void add(Scalar x) {
    smallest = min(smallest, x);
    largest = max(largest, x);
  }
  FL_OP void merge_lanes() {
    for (int step = 16; step > 0; step /= 2) {
      smallest = min(smallest, __shfl_xor_sync(0xffffffff, smallest, step));
      largest = max(largest, __shfl_xor_sync(0xffffffff, largest, step));
    }
  }
  FL_OP typename BlockBounds<Scalar>::Pair stored() const { return {smallest, largest}; }
};
template <>
struct Extremes<bool> : Extremes<i32> {};
template <>
struct Extremes<float> {
  float smallest = FL_INFINITY;
  float largest = -FL_INFINITY;
  bool nan = false;

  FL_OP void add(float x) {
    smallest = fminf(smallest, x);
    largest = fmaxf(largest, x);
    nan |= x != x;
  }
  FL_OP void merge_lanes() {
    for (int step = 16; step > 0; step /= 2) {
      smallest = fminf(smallest, __shfl_xor_sync(0xffffffff, smallest, step));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
    }
    nan = __any_sync(0xffffffff, nan);
  }
  FL_OP int2 stored() const { return {ordered(smallest), nan ? kOrderedNan : ordered(largest)}; }
};

// One warp per block of kRows rows by kCaptureBlock elements of the last two dimensions, in dense order of the blocks.
// With kRows = 1, the second last dimension is treated like those before it.
template <typename Element, int kRows>
FL_OP void capture_bounds(const BoundsArgument& argument, int rank) {
  const CaptureArgument& capture = argument.capture;
  using Scalar = typename Element::Scalar;
  const int outer = kRows > 1 ? rank - 2 : rank - 1;  // dimensions
  const int rows = kRows > 1 ? capture.sizes[outer] : 1;
  const i64 row_stride = kRows > 1 ? capture.strides[outer] : 0;
  const int columns = capture.sizes[rank - 1];
  const i64 column_stride = capture.strides[rank - 1];
  const int row_blocks = (rows + kRows - 1) / kRows;
  const int column_blocks = (columns + kCaptureBlock - 1) / kCaptureBlock;
  const i64 warps = static_cast<i64>(gridDim.x) * blockDim.x / 32;
  for (i64 block = (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x) / 32; block < argument.blocks;
       block += warps) {
    const int column = static_cast<int>(block % column_blocks) * kCaptureBlock + threadIdx.x % 32;
    i64 rest = block / column_blocks;
    const int row = static_cast<int>(rest % row_blocks) * kRows;
    rest /= row_blocks;
    i64 offset = row * row_stride;
    for (int d = outer - 1; d >= 0; --d) {
      offset += rest % capture.sizes[d] * capture.strides[d];
      rest /= capture.sizes[d];
    }
    const auto* data = static_cast<const typename Element::Bits*>(capture.data) + offset;
    Extremes<Scalar> extremes;
#pragma unroll 8
    for (int r = 0; r < min(kRows, rows - row); ++r) {
#pragma unroll
      for (int i = 0; i < kCaptureBlock; i += 32) {
        if (column + i < columns) {
          extremes.add(Element::scalar(__ldg(data + r * row_stride + (column + i) * column_stride)));
        }
      }
    }
    extremes.merge_lanes();
    if (threadIdx.x % 32 == 0) {
      static_cast<typename BlockBounds<Scalar>::Pair*>(argument.bounds)[block] = extremes.stored();
    }
  }
}

}  // namespace flashlift::cuda
