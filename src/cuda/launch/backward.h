// The fused backward pass on a GPU.
#pragma once

#include <memory>
#include <vector>

#include "cuda/emit/backward_config.h"
#include "cuda/launch/loaded_kernel.h"
#include "flashlift/backward.h"
#include "flashlift/device_allocator.h"

namespace flashlift::cuda {

// Preprocess, a main part of one family, and postprocess (launch/backward/), compiled for a set of captured tensors
// whose gradients are wanted. Immutable and safe to call from any thread.
class Backward {
 public:
  // `problem` is verified and simplified. Its kernels compile side by side. Errors: kUnsupported with the reason why
  // this family does not take the problem; what the compiler says.
  static Result<Backward> compile(const Problem& problem, const Device& device, BackwardKind kind,
                                  const std::vector<bool>& wants_gradient, const KernelCompiler& compile_kernel);

  // Launches on `stream`; `arguments` are verified and their memory is the device's. What it needs besides comes from
  // the allocator, or from the driver's memory pool and goes back to it in the order of the stream; where the stream is
  // being captured, it stays with the graph. All results have the same bits in every run. Errors: kUnsupported where
  // this family cannot read the arguments' strides, kInternal where there is no memory: nothing was launched then.
  Status run(const BackwardArguments& arguments, CuStream stream, const DeviceAllocator& allocator) const;

  // Bytes that a call of the problem's own lengths needs besides, without what gradients of captured tensors need.
  // Compiles nothing. Errors: as compile().
  static Result<int64_t> workspace_bytes(const Problem& problem, const Device& device, BackwardKind kind);

  const BackwardConfig& config() const;

 private:
  struct State;
  explicit Backward(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace flashlift::cuda
