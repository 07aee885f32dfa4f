#include "xla/ffi/signature.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <sstream>

#include "support/error.h"

namespace flashlift::xla {
namespace {

constexpr std::array<std::string_view, 9> kAttributes = {"problem",  "q_dims",         "k_dims",   "v_dims", "out_dims",
                                                         "lse_dims", "implementation", "captures", "lengths"};
constexpr std::array<std::string_view, 5> kTensors = {"q", "k", "v", "out", "lse"};

Result<DimensionOrder> read_order(const Attributes& attributes, std::string_view tensor, int letters) {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::string_view text, required(attributes, fmt::format("{}_dims", tensor)));
  return DimensionOrder::parse(text, tensor, letters);
}

Status check_dtype(const Buffer& buffer, DType expected, std::string_view name) {
  if (buffer.dtype != expected) {
    return invalid_argument("{} has element type {}, but the problem says {}", name, to_string(buffer.dtype),
                            to_string(expected));
  }
  return {};
}

Result<TensorView> dense(const Buffer& buffer, std::string_view name) {
  if (buffer.dims.size() > kMaxRank) {
    return invalid_argument("{} has {} dimensions; at most {} are supported", name, buffer.dims.size(), kMaxRank);
  }
  return dense_view(buffer.data, buffer.dtype, buffer.dims);
}

Result<TensorView> bind_capture(const Buffer& buffer, const Capture& capture) {
  const std::string name = fmt::format("captured tensor {}", capture.name);
  FLASHLIFT_RETURN_IF_ERROR(check_dtype(buffer, capture.dtype, name));
  const bool fits = std::equal(buffer.dims.begin(), buffer.dims.end(), capture.shape.begin(), capture.shape.end(),
                               [](int64_t actual, int64_t expected) { return expected < 0 || actual == expected; });
  if (!fits) {
    return invalid_argument("{} has shape [{}], but the problem says [{}] (-1 is any size)", name,
                            fmt::join(buffer.dims, ","), fmt::join(capture.shape, ","));
  }
  return dense(buffer, name);
}

Result<TensorView> bind_sinks(const Buffer& buffer, const Problem& problem) {
  FLASHLIFT_RETURN_IF_ERROR(check_dtype(buffer, DType::kF32, "sinks"));
  const std::array<int64_t, 2> expected = {problem.q_heads, problem.sinks};
  const auto fits = [&](auto begin) {
    return std::equal(buffer.dims.begin(), buffer.dims.end(), begin, expected.end());
  };
  if (!fits(expected.begin()) && !fits(expected.begin() + 1)) {
    return invalid_argument("sinks has shape [{}], expected [{}]: query heads by sinks, or [{}] for all heads",
                            fmt::join(buffer.dims, ","), fmt::join(expected, ","), problem.sinks);
  }
  return dense(buffer, "sinks");
}

Result<TensorView> bind_keep_mask(const Buffer& buffer) {
  FLASHLIFT_RETURN_IF_ERROR(check_dtype(buffer, DType::kBool, "the keep mask"));
  return dense(buffer, "the keep mask");
}

// The two halves of a 64-bit seed, low half first. In a call that is a part of a larger one, dropout's origin follows.
Result<TensorView> bind_seed(const Buffer& buffer) {
  FLASHLIFT_RETURN_IF_ERROR(check_dtype(buffer, DType::kU32, "dropout's seed"));
  if (buffer.dims.size() != 1 || (buffer.dims[0] != 2 && buffer.dims[0] != 4)) {
    return invalid_argument(
        "dropout's seed has shape [{}], expected [2]: the low half of 64 bits and the high one, or [4]: these, and "
        "which batch and query head of a larger call this one begins with",
        fmt::join(buffer.dims, ","));
  }
  return dense(buffer, "dropout's seed");
}

// The problem's captured tensors in the order of a list of names; without a list, in their own order.
Result<std::vector<size_t>> read_captures(const Attributes& attributes, const std::vector<Capture>& captures) {
  std::vector<size_t> order;
  const auto given = attributes.find("captures");
  if (given == attributes.end()) {
    order.resize(captures.size());
    std::iota(order.begin(), order.end(), size_t{0});
    return order;
  }
  std::istringstream names(given->second);
  for (std::string name; names >> name;) {
    const auto found = std::ranges::find(captures, name, &Capture::name);
    order.push_back(static_cast<size_t>(found - captures.begin()));
  }
  std::vector<size_t> sorted = order;
  std::ranges::sort(sorted);
  const bool each_once = std::ranges::adjacent_find(sorted) == sorted.end();
  if (!each_once || sorted.size() != captures.size() || (!sorted.empty() && sorted.back() >= captures.size())) {
    std::vector<std::string> expected;
    std::ranges::transform(captures, std::back_inserter(expected), &Capture::name);
    return invalid_argument("captures = \"{}\": expected each captured tensor of the problem once: {}", given->second,
                            fmt::join(expected, " "));
  }
  return order;
}

Status check_attributes(const Attributes& attributes, std::span<const std::string_view> others) {
  for (const auto& [name, value] : attributes) {
    if (std::ranges::find(kAttributes, name) == kAttributes.end() && std::ranges::find(others, name) == others.end()) {
      return invalid_argument("unknown attribute {}: expected {}; was the module written by a newer Flashlift?", name,
                              fmt::join(kAttributes, ", "));
    }
  }
  return {};
}

// The sizes of q, k, v, out and lse in the order b, h, s, d; -1 means any.
std::array<int64_t, 4> logical_sizes(const Problem& p, size_t tensor, bool lengths_known) {
  const bool is_key_or_value = tensor == 1 || tensor == 2;
  const std::array<int64_t, 5> depths = {p.head_dim, p.head_dim, p.value_dim, p.value_dim, 1};
  const int64_t length = is_key_or_value ? p.kv_len : p.q_len;
  return {lengths_known ? p.batch : -1, is_key_or_value ? p.kv_heads : p.q_heads, lengths_known ? length : -1,
          depths[tensor]};
}

}  // namespace

Result<std::string_view> required(const Attributes& attributes, std::string_view name) {
  const auto found = attributes.find(name);
  if (found == attributes.end()) {
    return invalid_argument("attribute {} is missing from backend_config (see docs/custom_call.md)", name);
  }
  return std::string_view(found->second);
}

Result<Signature> Signature::read(const Attributes& attributes, std::span<const std::string_view> others) {
  FLASHLIFT_RETURN_IF_ERROR(check_attributes(attributes, others));
  FLASHLIFT_ASSIGN_OR_RETURN(const std::string_view text, required(attributes, "problem"));
  Signature signature;
  FLASHLIFT_ASSIGN_OR_RETURN(signature.problem_, parse_problem(text));
  const Problem& problem = signature.problem_;
  if (problem.page_size > 0 || problem.want_row_max || problem.want_residual) {
    return unsupported("the custom call has no {}", problem.page_size > 0  ? "operand for a page table"
                                                    : problem.want_row_max ? "result for row_max"
                                                                           : "result for residual");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(signature.captures_, read_captures(attributes, problem.captures));
  for (size_t i = kQ; i <= kOut; ++i) {
    FLASHLIFT_ASSIGN_OR_RETURN(signature.orders_[i], read_order(attributes, kTensors[i], 4));
  }
  if (problem.want_lse) {
    FLASHLIFT_ASSIGN_OR_RETURN(signature.orders_[kLse], read_order(attributes, "lse", 3));
  } else if (attributes.contains("lse_dims")) {
    return invalid_argument("attribute lse_dims is given, but the problem does not ask for lse");
  }
  signature.gradient_orders_ = signature.orders_;
  for (size_t i = kQ; i <= kLse; ++i) {
    const std::string gradient = fmt::format("d_{}", kTensors[i]);  // by default with the layout of its tensor
    if (attributes.contains(gradient + "_dims")) {
      FLASHLIFT_ASSIGN_OR_RETURN(signature.gradient_orders_[i], read_order(attributes, gradient, i == kLse ? 3 : 4));
    }
  }
  if (const auto lengths = attributes.find("lengths"); lengths != attributes.end()) {
    if (lengths->second != "any") {
      return invalid_argument("lengths = \"{}\": expected \"any\", or no such attribute", lengths->second);
    }
    signature.lengths_known_ = false;
  }
  if (const auto implementation = attributes.find("implementation"); implementation != attributes.end()) {
    signature.implementation_ = implementation->second;
  }
  signature.problem_.dropout_words = signature.has_seed();  // an operand, which may be on a GPU
  return signature;
}

Result<TensorView> Signature::bound(Tensor tensor, const Buffer& buffer, DType dtype, const DimensionOrder& order,
                                    std::string_view name, AbsentLetters absent) const {
  FLASHLIFT_RETURN_IF_ERROR(check_dtype(buffer, dtype, name));
  return order.view(buffer.data, buffer.dtype, buffer.dims, logical_sizes(problem_, tensor, lengths_known_), absent,
                    name);
}

Result<AttentionArguments> Signature::bind(std::span<const Buffer> inputs, std::span<const Buffer> outputs) const {
  AttentionArguments arguments;
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.q,
                             bound(kQ, inputs[0], problem_.dtype, orders_[kQ], "q", AbsentLetters::kShared));
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.k,
                             bound(kK, inputs[1], problem_.dtype, orders_[kK], "k", AbsentLetters::kShared));
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.v,
                             bound(kV, inputs[2], problem_.dtype, orders_[kV], "v", AbsentLetters::kShared));
  FLASHLIFT_ASSIGN_OR_RETURN(
      arguments.out, bound(kOut, outputs[0], problem_.out_dtype, orders_[kOut], "out", AbsentLetters::kSizeOne));
  arguments.captures.resize(captures_.size());
  for (size_t i = 0; i < captures_.size(); ++i) {
    FLASHLIFT_ASSIGN_OR_RETURN(arguments.captures[captures_[i]],
                               bind_capture(inputs[3 + i], problem_.captures[captures_[i]]));
  }
  if (problem_.sinks > 0) {
    FLASHLIFT_ASSIGN_OR_RETURN(arguments.sinks, bind_sinks(inputs[3 + problem_.captures.size()], problem_));
  }
  if (problem_.keep_mask) {
    FLASHLIFT_ASSIGN_OR_RETURN(arguments.keep_mask, bind_keep_mask(inputs.back()));
  }
  if (has_seed()) {
    FLASHLIFT_ASSIGN_OR_RETURN(arguments.dropout_words, bind_seed(inputs.back()));
  }
  if (problem_.want_lse) {
    FLASHLIFT_ASSIGN_OR_RETURN(arguments.lse,
                               bound(kLse, outputs[1], DType::kF32, orders_[kLse], "lse", AbsentLetters::kSizeOne));
  }
  return arguments;
}

Result<TensorView> Signature::bind_output_gradient(size_t index, const Buffer& buffer) const {
  if (index == 0) {
    return bound(kOut, buffer, problem_.d_out_dtype(), gradient_orders_[kOut], "d_out", AbsentLetters::kSizeOne);
  }
  return bound(kLse, buffer, DType::kF32, gradient_orders_[kLse], "d_lse", AbsentLetters::kSizeOne);
}

Result<TensorView> Signature::bind_input_gradient(size_t index, const Buffer& buffer) const {
  const std::string name = fmt::format("the gradient of operand {}", index);
  return index < 3 ? bound(static_cast<Tensor>(index), buffer, problem_.dtype, gradient_orders_[index], name,
                           AbsentLetters::kSizeOne)
                   : dense(buffer, name);
}

}  // namespace flashlift::xla
