// One call of flashlift.attention or of its backward pass: its attributes are read and compiled once, and it then runs
// on any number of buffers.
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
  // Reads the attributes and compiles for the options' device. Errors: those of Signature::read and Attention::compile.
  static Result<AttentionCall> create(const Attributes& attributes, const CompileOptions& options);

  // Checks the buffers against the problem and runs. If the check fails, nothing is written.
  Status run(std::span<const Buffer> operands, std::span<const Buffer> results, const RunOptions& options) const;

 private:
  AttentionCall(Signature signature, Attention attention)
      : signature_(std::move(signature)), attention_(std::move(attention)) {}

  Signature signature_;
  Attention attention_;
};

// Its operands are the forward call's operands and results, and the gradients of these results. Its results are the
// gradients that the attribute `gradients` lists.
class BackwardCall {
 public:
  static constexpr std::array<std::string_view, 6> kAttributes = {"gradients", "d_q_dims",   "d_k_dims",
                                                                  "d_v_dims",  "d_out_dims", "d_lse_dims"};

  // Like AttentionCall::create. Also fails if `gradients` names something other than an operand with a gradient, or if
  // the problem has no gradient. Compiles the backward pass.
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
