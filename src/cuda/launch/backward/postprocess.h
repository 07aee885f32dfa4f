// The postprocess of the backward pass: the gradients of sinks, and those of captured tensors in the caller's type and
// layout.
#pragma once

#include <memory>

#include "cuda/launch/backward/capture_sums.h"
#include "cuda/launch/backward/main.h"
#include "cuda/launch/loaded_kernel.h"

namespace flashlift::cuda {

class Postprocess {
 public:
  Status compile(const Problem& problem, const Device& device, const RowStatistics& statistics,
                 const std::vector<bool>& wants_gradient, const KernelCompiler& compile_kernel);

  Status launch(BackwardCall& call, const CaptureSums& sums) const;

 private:
  std::shared_ptr<const LoadedLibrary> library_;  // null: there is nothing to do
  CuKernel sinks_ = nullptr;
  CuKernel store_capture_ = nullptr;
};

}  // namespace flashlift::cuda
