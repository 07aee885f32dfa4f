#include <fmt/format.h>
#include <fmt/ranges.h>

#include "flashlift/tensor.h"

namespace flashlift {
namespace {

// Sizes are multiplied before they are verified, so that overflow must be defined.
int64_t wrapping_product(int64_t x, int64_t y) {
  return static_cast<int64_t>(static_cast<uint64_t>(x) * static_cast<uint64_t>(y));
}

}  // namespace

int64_t TensorView::element_count() const {
  int64_t count = 1;
  for (const int64_t size : shape()) {
    count = wrapping_product(count, size);
  }
  return count;
}

TensorView dense_view(void* data, DType dtype, std::span<const int64_t> shape) {
  TensorView view{.data = data, .dtype = dtype, .rank = static_cast<int>(shape.size()), .sizes = {}, .strides = {}};
  int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.sizes[i] = shape[i];
    view.strides[i] = stride;
    stride = wrapping_product(stride, shape[i]);
  }
  return view;
}

TensorView transposed(TensorView view, int i, int j) {
  std::swap(view.sizes[i], view.sizes[j]);
  std::swap(view.strides[i], view.strides[j]);
  return view;
}

std::string describe(const TensorView& view) {
  return fmt::format("{}[{}]", to_string(view.dtype), fmt::join(view.shape(), ","));
}

}  // namespace flashlift
