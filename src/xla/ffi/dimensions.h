// Maps the dimensions of a call's tensors to those of the attention, by the strings of docs/custom_call.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "flashlift/result.h"
#include "flashlift/tensor.h"

namespace flashlift::xla {

// The logical dimensions, in the order of AttentionArguments' tensors.
inline constexpr std::string_view kDimensionLetters = "bhsd";

// The meaning of a missing letter.
enum class AbsentLetters : uint8_t {
  kShared,   // inputs: for b and h, all indices read the same memory
  kSizeOne,  // outputs: the size must be 1
};

// A verified dimension string: "bshd", "bshhd", "sd".
class DimensionOrder {
 public:
  // `letters` is the number of letters of "bhsd" that the tensor has: 4, or 3 for lse. `tensor` is its name for
  // messages.
  static Result<DimensionOrder> parse(std::string_view text, std::string_view tensor, int letters);

  // Views dense row-major memory of shape `dims` as a tensor of the logical sizes, where -1 means any. `name` is the
  // name for messages, if this is not the tensor itself but its gradient. Fails if a rank or a size does not match, and
  // if dimensions with equal letters are not neighbours.
  Result<TensorView> view(void* data, DType dtype, std::span<const int64_t> dims, std::span<const int64_t> logical,
                          AbsentLetters absent, std::string_view name = {}) const;

 private:
  std::string text_;
  std::string tensor_;
  int letters_ = 0;
};

}  // namespace flashlift::xla
