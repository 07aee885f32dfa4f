// The attributes of a call, and its buffers as an attention's tensors. Independent of XLA, which only the handlers use.
// docs/custom_call.md defines them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "xla/ffi/dimensions.h"

namespace flashlift::xla {

// A dense, row-major buffer of the caller's framework.
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
  // `others`: attributes of the call that are not read here. Fails if an attribute is missing, unknown or malformed, if
  // parse_problem fails, and if a feature requires an operand or a result that a call cannot have.
  static Result<Signature> read(const Attributes& attributes, std::span<const std::string_view> others);

  const Problem& problem() const { return problem_; }
  const std::string& implementation() const { return implementation_; }
  // If false, the problem's batch and lengths are placeholders, and each call has its own.
  bool lengths_known() const { return lengths_known_; }

  bool has_seed() const { return problem_.dropout > 0 && !problem_.keep_mask; }
  size_t input_count() const {
    return 3 + problem_.captures.size() + (problem_.sinks > 0 ? 1 : 0) + (problem_.drops_keys() ? 1 : 0);
  }
  size_t output_count() const { return problem_.want_lse ? 2 : 1; }

  // The captured tensor of the problem that an input is, from the fourth input on; a number beyond the last one if it
  // is none.
  size_t capture_of(size_t input) const { return input - 3 < captures_.size() ? captures_[input - 3] : input - 3; }

  // `inputs`: q, k, v, captured tensors, sinks, the keep mask or dropout's seed; `outputs`: out, lse; as many as
  // counted above.
  Result<AttentionArguments> bind(std::span<const Buffer> inputs, std::span<const Buffer> outputs) const;

  // The gradient of out (0) or lse (1).
  Result<TensorView> bind_output_gradient(size_t index, const Buffer& buffer) const;
  // The gradient of one of the inputs above.
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
