// One flashlift.attention call, or one of its backward pass: its attributes read and compiled once, then run on any
// number of buffers.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "flashlift/attention.h"
#include "flashlift/result.h"
#include "xla/ffi/signature.h"

namespace flashlift::xla {

class AttentionCall {
 public:
  // Reads the attributes and compiles for the options' device. Errors: what Signature::read and Attention::compile say.
  static Result<AttentionCall> create(const Attributes& attributes, const CompileOptions& options);

  // Checks the buffers against the problem and runs. Nothing is written if that fails.
  Status run(std::span<const Buffer> operands, std::span<const Buffer> results, const RunOptions& options) const;

 private:
  AttentionCall(Signature signature, Attention attention)
      : signature_(std::move(signature)), attention_(std::move(attention)) {}

  Signature signature_;
  Attention attention_;
};

// Its operands are the forward call's operands and results, and the gradients of these results; its results the
// gradients that the attribute `gradients` lists.
class BackwardCall {
 public:
  static constexpr std::array<std::string_view, 6> kAttributes = {"gradients", "d_q_dims",   "d_k_dims",
                                                                  "d_v_dims",  "d_out_dims", "d_lse_dims"};

  // As AttentionCall::create; besides: `gradients` names what is no operand with a gradient; a problem that has none.
  // Compiles the backward pass.
  static Result<BackwardCall> create(const Attributes& attributes, CompileOptions options);

  Status run(std::span<const Buffer> operands, std::span<const Buffer> results, const RunOptions& options) const;

 private:
  BackwardCall(Signature signature, Attention attention, std::vector<size_t> gradients)
      : signature_(std::move(signature)), attention_(std::move(attention)), gradients_(std::move(gradients)) {}

  Status bind_gradients(std::span<const Buffer> results, BackwardArguments& arguments) const;

  Signature signature_;
  Attention attention_;
  std::vector<size_t> gradients_;  // positions among the forward call's operands
};

}  // namespace flashlift::xla
