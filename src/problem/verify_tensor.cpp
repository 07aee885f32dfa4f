#include "problem/verify_tensor.h"

#include <algorithm>
#include <string>

#include "support/error.h"

namespace flashlift::problem {
namespace {

std::string title(const WantedTensor& wanted) {
  return wanted.role.empty() ? std::string(wanted.name) : fmt::format("{} `{}`", wanted.role, wanted.name);
}

}  // namespace

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
    return invalid_argument("{}: expected {}[{}], got {}", title(wanted), to_string(wanted.dtype), shape,
                            describe(view));
  }
  if (view.data == nullptr && view.element_count() > 0) {
    return invalid_argument("{}: the data pointer of a {} tensor is null", title(wanted), describe(view));
  }
  return {};
}

Status verify_output(const WantedTensor& wanted) {
  FLASHLIFT_RETURN_IF_ERROR(verify_tensor(wanted));
  for (int i = 0; i < wanted.view.rank; ++i) {
    if (wanted.view.sizes[i] > 1 && wanted.view.strides[i] == 0 && wanted.view.element_count() > 0) {
      return invalid_argument("{}: dimension {} of an output has stride 0, so its elements overlap", title(wanted), i);
    }
  }
  return {};
}

}  // namespace flashlift::problem
