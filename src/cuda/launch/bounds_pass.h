// The passes before a kernel that find the bounds of captured tensors' blocks, by which tiles are skipped.
#pragma once

#include <vector>

#include "cuda/emit/program_emitter.h"
#include "cuda/kernels/common/forward_params.h"
#include "cuda/launch/loaded_kernel.h"

namespace flashlift::cuda {

class BoundsPasses {
 public:
  // Those of the problem's bounded_captures().
  BoundsPasses(const Problem& problem, const Device& device);
  // Takes their kernels from a library compiled for the problem. Before that they can only be asked for their bytes.
  Status load(const LoadedLibrary& library);

  bool empty() const { return passes_.empty(); }
  // Device memory that launch() needs for a call.
  int64_t bytes(const ForwardParams& params) const;
  // Launches them, and lets the captures of `params` know where their bounds will be.
  Status launch(const Driver& driver, ForwardParams& params, CuPointer memory, CuStream stream) const;

 private:
  struct Pass {
    BoundedCapture capture;
    Capture declared;
    CuKernel kernel = nullptr;
  };
  int64_t blocks(const Pass& pass, const ForwardParams& params) const;

  std::vector<Pass> passes_;
  int64_t products_per_score_;
  Device device_;
};

}  // namespace flashlift::cuda
