// One flashlift.attention call: its attributes read and compiled once, then run on any number of buffers. Nothing here
// knows XLA; the handlers do. The contract is docs/custom_call.md.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "flashlift/attention.h"
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

class AttentionCall {
 public:
  // Reads the attributes and compiles for the options' device. Errors: an attribute that is missing, unknown or
  // malformed; what parse_problem and Attention::compile say.
  static Result<AttentionCall> create(const Attributes& attributes, CompileOptions options);

  // Checks the buffers against the problem and runs. Nothing is written if that fails.
  Status run(std::span<const Buffer> operands, std::span<const Buffer> results, const RunOptions& options) const;

 private:
  struct Orders {
    DimensionOrder q, k, v, out;
    std::optional<DimensionOrder> lse;
  };

  AttentionCall(Attention attention, Orders orders) : attention_(std::move(attention)), orders_(std::move(orders)) {}
  static Result<Orders> read_orders(const Attributes& attributes, const Problem& problem);
  Result<AttentionArguments> bind(std::span<const Buffer> operands, std::span<const Buffer> results) const;

  Attention attention_;
  Orders orders_;
};

}  // namespace flashlift::xla
