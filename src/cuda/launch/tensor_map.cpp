#include "cuda/launch/tensor_map.h"

#include <algorithm>

#include "support/error.h"

namespace flashlift::cuda {
namespace {

constexpr int kFloat16 = 6;
constexpr int kBFloat16 = 9;
constexpr int kNoInterleave = 0;
// Of 32, 64 and 128 bytes, by columns of 16 bits.
constexpr int swizzle_of(int columns) { return columns == 16 ? 1 : columns == 32 ? 2 : 3; }
constexpr int kZeroFill = 0;
constexpr int64_t kStrideUnit = 16;  // bytes
constexpr int64_t kLargestStride = int64_t{1} << 40;

}  // namespace

Result<TensorMap> encode_tensor_map(const Driver& driver, const TensorView& view, int rows, int columns,
                                    L2Promotion promotion) {
  const auto element = static_cast<int64_t>(size_in_bytes(view.dtype));
  if (view.sizes[3] > 1 && view.strides[3] != 1) {
    return unsupported("the columns of {} have a stride of {} elements, but the copy engine needs contiguous columns",
                       describe(view), view.strides[3]);
  }
  uint64_t sizes[4];
  uint64_t strides[3];
  const int order[4] = {3, 2, 1, 0};
  for (int i = 0; i < 4; ++i) {
    const int d = order[i];
    sizes[i] = static_cast<uint64_t>(std::max<int64_t>(view.sizes[d], 1));
    if (i == 0) {
      continue;
    }
    const int64_t bytes = view.sizes[d] > 1 ? view.strides[d] * element : kStrideUnit;
    if (bytes <= 0 || bytes % kStrideUnit != 0 || bytes >= kLargestStride) {
      return unsupported(
          "dimension {} of {} has a stride of {} bytes, but the copy engine needs a positive multiple of {}", d,
          describe(view), bytes, kStrideUnit);
    }
    strides[i - 1] = static_cast<uint64_t>(bytes);
  }
  if (reinterpret_cast<uintptr_t>(view.data) % kStrideUnit != 0) {
    return unsupported("the memory of {} does not start at a multiple of {} bytes", describe(view), kStrideUnit);
  }
  const uint32_t box[4] = {static_cast<uint32_t>(columns), static_cast<uint32_t>(rows), 1, 1};
  const uint32_t steps[4] = {1, 1, 1, 1};
  TensorMap map;
  const CuResult result = driver.cuTensorMapEncodeTiled(&map, view.dtype == DType::kBF16 ? kBFloat16 : kFloat16, 4,
                                                        view.data, sizes, strides, box, steps, kNoInterleave,
                                                        swizzle_of(columns), static_cast<int>(promotion), kZeroFill);
  if (result != 0) {
    return unsupported("the driver refused a tensor map for {}: {}", describe(view),
                       driver.check(result, "cuTensorMapEncodeTiled").error().message);
  }
  return map;
}

}  // namespace flashlift::cuda
