// What the attributes of a call say, and the call's buffers seen as an attention's tensors by it. Nothing here knows
// XLA; the handlers do. The contract is docs/custom_call.md.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "xla/ffi/dimensions.h"

namespace flashlift::xla {

// A buffer as the caller's framework hands it over: dense, row-major.
struct Buffer {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::span<const int64_t> dims;
};

// The call's string attributes by name.
using Attributes = std::map<std::string, std::string, std::less<>>;

Result<std::string_view> required(const Attributes& attributes, std::string_view name);

class Signature {
 public:
  // `others`: the attributes of the call that are not read here. Errors: an attribute that is missing, unknown or
  // malformed; what parse_problem says; a feature that needs an operand or a result that a call does not have.
  static Result<Signature> read(const Attributes& attributes, std::span<const std::string_view> others);

  const Problem& problem() const { return problem_; }
  const std::string& implementation() const { return implementation_; }
  // False: the problem's batch and lengths only fill their places; each call brings its own.
  bool lengths_known() const { return lengths_known_; }

  bool has_seed() const { return problem_.dropout > 0 && !problem_.keep_mask; }
  size_t input_count() const {
    return 3 + problem_.captures.size() + (problem_.sinks > 0 ? 1 : 0) + (problem_.drops_keys() ? 1 : 0);
  }
  size_t output_count() const { return problem_.want_lse ? 2 : 1; }

  // Which of the problem's captured tensors an input is, from the fourth on; beyond their number, none is.
  size_t capture_of(size_t input) const { return input - 3 < captures_.size() ? captures_[input - 3] : input - 3; }

  // `inputs`: q, k, v, captured tensors, sinks, the keep mask or dropout's seed; `outputs`: out, lse; as many as
  // counted above.
  Result<AttentionArguments> bind(std::span<const Buffer> inputs, std::span<const Buffer> outputs) const;

  // The gradient by out (0) or lse (1).
  Result<TensorView> bind_output_gradient(size_t index, const Buffer& buffer) const;
  // The gradient by one of the inputs above.
  Result<TensorView> bind_input_gradient(size_t index, const Buffer& buffer) const;

 private:
  enum Tensor : uint8_t { kQ, kK, kV, kOut, kLse };

  Result<TensorView> bound(Tensor tensor, const Buffer& buffer, DType dtype, const DimensionOrder& order,
                           std::string_view name, AbsentLetters absent) const;

  Problem problem_;
  std::string implementation_;
  bool lengths_known_ = true;
  std::vector<size_t> captures_;  // of the problem, in the order of the inputs
  std::array<DimensionOrder, 5> orders_;
  std::array<DimensionOrder, 5> gradient_orders_;
};

}  // namespace flashlift::xla
