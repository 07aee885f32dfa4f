// The pass that computes the bounds of captured tensors' blocks before a kernel, which skips tiles by them.
#pragma once

#include <vector>

#include "cuda/emit/program_emitter.h"
#include "cuda/kernels/common/forward_params.h"
#include "cuda/launch/loaded_kernel.h"

namespace flashlift::cuda {

class BoundsPasses {
 public:
  // For the problem's bounded_captures().
  BoundsPasses(const Problem& problem, const Device& device);
  // Takes the kernels from a library compiled for the problem. Must be called before launch().
  Status load(const LoadedLibrary& library);

  bool empty() const { return passes_.empty(); }
  // Device memory that launch() needs for a call.
  int64_t bytes(const ForwardParams& params) const;
  // The kernel's arguments (BoundsArguments of the generated code), or null if no tensor of the call is worth a pass.
  // Also sets the addresses of the bounds in the captures of `params`.
  void* place(ForwardParams& params, CuPointer memory, std::vector<BoundsArgument>& arguments) const;
  // Computes all bounds in a launch of their own.
  Status launch(const Driver& driver, ForwardParams& params, CuPointer memory, CuStream stream) const;

 private:
  struct Pass {
    BoundedCapture capture;
    Capture declared;
  };
  int64_t blocks(const Pass& pass, const ForwardParams& params) const;

  std::vector<Pass> passes_;
  CuKernel kernel_ = nullptr;
  int64_t products_per_score_;
  Device device_;
};

}  // namespace flashlift::cuda
