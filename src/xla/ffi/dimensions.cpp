#include "xla/ffi/dimensions.h"

#include <fmt/ranges.h>

#include "support/counted.h"
#include "support/error.h"

namespace flashlift::xla {

Result<DimensionOrder> DimensionOrder::parse(std::string_view text, std::string_view tensor, int letters) {
  const std::string_view known = kDimensionLetters.substr(0, static_cast<size_t>(letters));
  for (const char letter : text) {
    if (letter != '1' && known.find(letter) == std::string_view::npos) {
      return invalid_argument(
          "attribute {}_dims = \"{}\": expected the letters {} and 1, one for each dimension, got '{}'", tensor, text,
          fmt::join(known, ", "), letter);
    }
  }
  DimensionOrder order;
  order.text_ = text;
  order.tensor_ = tensor;
  order.letters_ = letters;
  return order;
}

Result<TensorView> DimensionOrder::view(void* data, DType dtype, std::span<const int64_t> dims,
                                        std::span<const int64_t> logical, AbsentLetters absent,
                                        std::string_view name) const {
  name = name.empty() ? tensor_ : name;
  if (dims.size() != text_.size()) {
    return invalid_argument("{} has {}, but {}_dims = \"{}\" names {}", name, counted(dims.size(), "dimension"),
                            tensor_, text_, text_.size());
  }
  TensorView result{.data = data, .dtype = dtype, .rank = letters_, .sizes = {}, .strides = {}};
  result.sizes.fill(1);
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0; stride *= dims[i]) {
    const char letter = text_[i];
    if (dims[i] == 1) {
      continue;  // its stride is not used
    }
    if (letter == '1') {
      return invalid_argument("{} has shape [{}]: dimension {}, called 1 in {}_dims = \"{}\", has size {}", name,
                              fmt::join(dims, ","), i, tensor_, text_, dims[i]);
    }
    const size_t axis = kDimensionLetters.find(letter);
    if (result.strides[axis] == 0) {
      result.strides[axis] = stride;
    } else if (stride != result.strides[axis] * result.sizes[axis]) {
      return invalid_argument(
          "{}_dims = \"{}\" on shape [{}]: the dimensions called {} are not neighbours, so no single stride steps "
          "through them; transpose {} first",
          tensor_, text_, fmt::join(dims, ","), letter, name);
    }
    result.sizes[axis] *= dims[i];
  }
  for (int axis = 0; axis < letters_; ++axis) {
    const char letter = kDimensionLetters[static_cast<size_t>(axis)];
    const bool shared =
        absent == AbsentLetters::kShared && (letter == 'b' || letter == 'h') && text_.find(letter) == std::string::npos;
    if (shared && logical[axis] < 0) {
      return invalid_argument("{}_dims = \"{}\" lacks {}; expected every letter whose size the call determines",
                              tensor_, text_, letter);
    }
    if (result.sizes[axis] != logical[axis] && logical[axis] >= 0 && !shared) {
      return invalid_argument("{} has shape [{}], which {}_dims = \"{}\" reads as {} = {}; the problem says {}", name,
                              fmt::join(dims, ","), tensor_, text_, letter, result.sizes[axis], logical[axis]);
    }
    if (shared) {
      result.sizes[axis] = logical[axis];  // with stride 0
    }
  }
  return result;
}

}  // namespace flashlift::xla
