#include "xla/ffi/call.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "support/error.h"

namespace flashlift::xla {
namespace {

constexpr std::array<std::string_view, 7> kAttributes = {"problem",  "q_dims",   "k_dims",        "v_dims",
                                                         "out_dims", "lse_dims", "implementation"};

Result<std::string_view> required(const Attributes& attributes, std::string_view name) {
  const auto found = attributes.find(name);
  if (found == attributes.end()) {
    return invalid_argument(
        "attribute {} is missing: backend_config must hold problem, q_dims, k_dims, v_dims and "
        "out_dims (see docs/custom_call.md)",
        name);
  }
  return std::string_view(found->second);
}

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

}  // namespace

Result<AttentionCall::Orders> AttentionCall::read_orders(const Attributes& attributes, const Problem& problem) {
  FLASHLIFT_ASSIGN_OR_RETURN(DimensionOrder q, read_order(attributes, "q", 4));
  FLASHLIFT_ASSIGN_OR_RETURN(DimensionOrder k, read_order(attributes, "k", 4));
  FLASHLIFT_ASSIGN_OR_RETURN(DimensionOrder v, read_order(attributes, "v", 4));
  FLASHLIFT_ASSIGN_OR_RETURN(DimensionOrder out, read_order(attributes, "out", 4));
  Orders orders{std::move(q), std::move(k), std::move(v), std::move(out), std::nullopt};
  if (problem.want_lse) {
    FLASHLIFT_ASSIGN_OR_RETURN(orders.lse, read_order(attributes, "lse", 3));
  } else if (attributes.contains("lse_dims")) {
    return invalid_argument("attribute lse_dims is given, but the problem does not ask for lse");
  }
  return orders;
}

Result<AttentionCall> AttentionCall::create(const Attributes& attributes, CompileOptions options) {
  for (const auto& [name, value] : attributes) {
    if (std::find(kAttributes.begin(), kAttributes.end(), name) == kAttributes.end()) {
      return invalid_argument("unknown attribute {}: expected {}; was the module written by a newer Flashlift?", name,
                              fmt::join(kAttributes, ", "));
    }
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const std::string_view text, required(attributes, "problem"));
  FLASHLIFT_ASSIGN_OR_RETURN(const Problem problem, parse_problem(text));
  if (problem.dropout > 0 || problem.page_size > 0 || problem.want_row_max) {
    return unsupported("the custom call has no {}", problem.dropout > 0     ? "operand for dropout's seed"
                                                    : problem.page_size > 0 ? "operand for a page table"
                                                                            : "result for row_max");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(Orders orders, read_orders(attributes, problem));
  if (const auto implementation = attributes.find("implementation"); implementation != attributes.end()) {
    options.implementation = implementation->second;
  }
  FLASHLIFT_ASSIGN_OR_RETURN(Attention attention, Attention::compile(problem, options));
  return AttentionCall(std::move(attention), std::move(orders));
}

Result<AttentionArguments> AttentionCall::bind(std::span<const Buffer> operands,
                                               std::span<const Buffer> results) const {
  const Problem& p = attention_.problem();
  const size_t captures = p.captures.size();
  const size_t expected_operands = 3 + captures + (p.sinks > 0 ? 1 : 0);
  if (operands.size() != expected_operands) {
    return invalid_argument("expected {} operands (q, k, v, {} captured tensors{}), got {}", expected_operands,
                            captures, p.sinks > 0 ? ", sinks" : "", operands.size());
  }
  const size_t expected_results = p.want_lse ? 2 : 1;
  if (results.size() != expected_results) {
    return invalid_argument("expected {} ({}), got {}", expected_results == 1 ? "1 result" : "2 results",
                            p.want_lse ? "out, lse" : "out", results.size());
  }

  const auto bound = [&](const DimensionOrder& order, const Buffer& buffer, std::string_view name, DType dtype,
                         std::array<int64_t, 4> logical, AbsentLetters absent) -> Result<TensorView> {
    FLASHLIFT_RETURN_IF_ERROR(check_dtype(buffer, dtype, name));
    return order.view(buffer.data, buffer.dtype, buffer.dims, logical, absent);
  };
  AttentionArguments arguments;
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.q, bound(orders_.q, operands[0], "q", p.dtype,
                                                {p.batch, p.q_heads, p.q_len, p.head_dim}, AbsentLetters::kShared));
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.k, bound(orders_.k, operands[1], "k", p.dtype,
                                                {p.batch, p.kv_heads, p.kv_len, p.head_dim}, AbsentLetters::kShared));
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.v, bound(orders_.v, operands[2], "v", p.dtype,
                                                {p.batch, p.kv_heads, p.kv_len, p.value_dim}, AbsentLetters::kShared));
  FLASHLIFT_ASSIGN_OR_RETURN(arguments.out, bound(orders_.out, results[0], "out", p.out_dtype,
                                                  {p.batch, p.q_heads, p.q_len, p.value_dim}, AbsentLetters::kSizeOne));
  for (size_t i = 0; i < captures; ++i) {
    FLASHLIFT_ASSIGN_OR_RETURN(const TensorView view, bind_capture(operands[3 + i], p.captures[i]));
    arguments.captures.push_back(view);
  }
  if (p.sinks > 0) {
    FLASHLIFT_ASSIGN_OR_RETURN(arguments.sinks, bind_sinks(operands.back(), p));
  }
  if (p.want_lse) {
    FLASHLIFT_ASSIGN_OR_RETURN(arguments.lse, bound(*orders_.lse, results[1], "lse", DType::kF32,
                                                    {p.batch, p.q_heads, p.q_len, 1}, AbsentLetters::kSizeOne));
  }
  return arguments;
}

Status AttentionCall::run(std::span<const Buffer> operands, std::span<const Buffer> results,
                          const RunOptions& options) const {
  FLASHLIFT_ASSIGN_OR_RETURN(const AttentionArguments arguments, bind(operands, results));
  return attention_.run(arguments, options);
}

}  // namespace flashlift::xla
