#include "problem/verify_tensor.h"

#include <algorithm>
#include <string>

#include "support/error.h"

namespace flashlift::problem {

Status verify_tensor(const WantedTensor& wanted) {
  const TensorView& view = wanted.view;
  const bool shape_fits = view.rank == static_cast<int>(wanted.shape.size()) &&
                          std::equal(wanted.shape.begin(), wanted.shape.end(), view.sizes.begin(),
                                     [](int64_t want, int64_t got) { return want == got || (want < 0 && got >= 0); });
  if (view.dtype != wanted.dtype || !shape_fits) {
    std::string shape;
    for (const int64_t size : wanted.shape) {
      shape += shape.empty() ? "" : ",";
      shape += size < 0 ? "?" : std::to_string(size);
    }
    return invalid_argument("{}: expected {}[{}], got {}", wanted.name, to_string(wanted.dtype), shape, describe(view));
  }
  if (view.data == nullptr && view.element_count() > 0) {
    return invalid_argument("{}: the data pointer of a {} tensor is null", wanted.name, describe(view));
  }
  return {};
}

Status verify_output(const WantedTensor& wanted) {
  FLASHLIFT_RETURN_IF_ERROR(verify_tensor(wanted));
  for (int i = 0; i < wanted.view.rank; ++i) {
    if (wanted.view.sizes[i] > 1 && wanted.view.strides[i] == 0 && wanted.view.element_count() > 0) {
      return invalid_argument("{}: dimension {} of an output has stride 0, so its elements overlap", wanted.name, i);
    }
  }
  return {};
}

}  // namespace flashlift::problem
