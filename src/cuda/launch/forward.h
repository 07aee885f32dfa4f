// Fused attention, forward, on a GPU.
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
  // `problem` is verified and simplified. Calls of any length run; those of `length` are what the tiles suit. Errors:
  // kUnsupported with the reason why this kind of kernel does not take the problem; what the compiler says.
  static Result<Forward> compile(const Problem& problem, const Device& device, KernelKind kind, LengthClass length,
                                 const KernelCompiler& compile_kernel);

  // Launches on `stream`; `arguments` are verified and their memory is the device's. Errors: kUnsupported where this
  // kind of kernel cannot read the arguments' strides: nothing was launched then.
  Status run(const AttentionArguments& arguments, CuStream stream) const;

  // Bytes of device memory that a call of the problem's own lengths uses besides.
  int64_t workspace_bytes() const;

  const ForwardConfig& config() const;
  const std::string& code() const;  // the generated CUDA C++

 private:
  struct State;
  explicit Forward(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace flashlift::cuda
