// The fused forward pass on a GPU.
#pragma once

#include <memory>
#include <string>

#include "cuda/emit/forward_config.h"
#include "cuda/launch/loaded_kernel.h"
#include "flashlift/problem.h"

namespace flashlift::cuda {

// Immutable and safe to call from any thread.
class Forward {
 public:
  // `problem` is verified and simplified. Calls of any length can run; the tiles are chosen for those of `length`.
  // Errors: kUnsupported with the reason why this kind of kernel does not support the problem, and those of the
  // compiler.
  static Result<Forward> compile(const Problem& problem, const Device& device, KernelKind kind, LengthClass length,
                                 const KernelCompiler& compile_kernel);

  // Launches on `stream`. `arguments` are verified and in the device's memory. Errors: kUnsupported if this kind of
  // kernel cannot read the arguments' strides: then nothing was launched.
  Status run(const AttentionArguments& arguments, CuStream stream) const;

  // Device memory in bytes that a call of the problem's own lengths uses besides its arguments.
  int64_t workspace_bytes() const;

  const ForwardConfig& config() const;
  const std::string& code() const;  // the generated CUDA C++

 private:
  struct State;
  explicit Forward(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace flashlift::cuda
