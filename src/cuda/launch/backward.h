// The fused backward pass on a GPU.
#pragma once

#include <memory>
#include <vector>

#include "cuda/emit/backward_config.h"
#include "cuda/launch/forward.h"
#include "flashlift/backward.h"

namespace flashlift::cuda {

// Compiled for a set of captured tensors whose gradients are wanted. Immutable and safe to call from any thread.
class Backward {
 public:
  // `problem` is verified and simplified. Errors: kUnsupported with the reason; what the compiler says.
  static Result<Backward> compile(const Problem& problem, const Device& device, const std::vector<bool>& wants_gradient,
                                  const Forward::KernelCompiler& compile_kernel);

  // Launches on `stream`; `arguments` are verified and their memory is the device's. What it needs besides, 16 bytes a
  // row as a rule, comes from the driver's memory pool and goes back to it in the order of the stream. Gradients of
  // captured tensors are the only ones whose last bits may change from run to run.
  Status run(const BackwardArguments& arguments, CuStream stream) const;

  const BackwardConfig& config() const;

 private:
  struct State;
  explicit Backward(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace flashlift::cuda
