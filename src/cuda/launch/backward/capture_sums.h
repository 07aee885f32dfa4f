// The f32 sums that gradients of captured tensors are added up in, and where they lie in a call's memory.
#pragma once

#include <optional>
#include <vector>

#include "cuda/launch/backward/call_memory.h"
#include "cuda/launch/backward/main.h"

namespace flashlift::cuda {

class CaptureSums {
 public:
  // Sums take memory only where the caller's own tensor cannot hold them: it is not f32, or not dense.
  CaptureSums(const BackwardArguments& arguments, Layout& layout);

  // Lets the call's kernels know where the sums are.
  void place(BackwardCall& call, CuPointer memory);
  Status clear(const BackwardCall& call) const;
  // Writes what was summed beside into the tensors that the caller wants. `kernel`: flashlift_store_capture.
  Status store(const BackwardCall& call, CuKernel kernel) const;

 private:
  struct Sums {
    const TensorView* gradient = nullptr;  // null: not wanted
    bool beside = false;                   // not in the tensor itself
    int64_t offset = 0;
    CuPointer pointer = 0;
  };
  std::vector<Sums> sums_;
};

}  // namespace flashlift::cuda
