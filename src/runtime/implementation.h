// The interface that a backend implements for flashlift::Attention.
#pragma once

#include <string>
#include <vector>

#include "flashlift/attention.h"

namespace flashlift {

struct Attention::Implementation {
  virtual ~Implementation() = default;

  virtual const Problem& problem() const = 0;
  // The arguments have been verified against the problem.
  virtual Status run(const AttentionArguments& arguments, const RunOptions& options) const = 0;
  // One entry per captured tensor.
  virtual Status prepare_backward(const std::vector<bool>& capture_gradients) const = 0;
  virtual bool reads_residual() const = 0;
  virtual Status run_backward(const BackwardArguments& arguments, const RunOptions& options) const = 0;
  virtual int64_t workspace_bytes(int concurrency) const = 0;
  virtual int64_t backward_workspace_bytes(int concurrency) const = 0;
  virtual Result<std::string> code() const = 0;

  std::string name;
  std::vector<Consideration> considerations;
  std::vector<Consideration> backward_considerations;
};

}  // namespace flashlift
