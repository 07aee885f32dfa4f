// The sums from which the gradients of captured tensors are rounded, and where they lie in a call's memory.
#pragma once

#include <optional>
#include <vector>

#include "cuda/launch/backward/call_memory.h"
#include "cuda/launch/backward/captures.h"
#include "cuda/launch/backward/main.h"

namespace flashlift::cuda {

class CaptureSums {
 public:
  // `gradients`: adds to the sums; null where the call requests no gradients of captured tensors. Exact sums take 88
  // bytes an element. Sums that a thread stores take memory only where the caller's own tensor cannot hold them: it is
  // not f32, or not dense.
  CaptureSums(const BackwardCall& call, const CaptureGradients* gradients, Layout& layout);

  // Lets the call's kernels know where the sums are.
  void place(BackwardCall& call, CuPointer memory);
  Status clear(const BackwardCall& call) const;
  // Rounds the sums into the tensors that the caller wants. `kernel`: flashlift_store_capture.
  Status store(const BackwardCall& call, CuKernel kernel) const;

 private:
  struct Sums {
    const TensorView* gradient = nullptr;  // null: not wanted
    bool exact = false;
    bool beside = false;  // not in the tensor itself
    int64_t bytes = 0;
    int64_t offset = 0;
    CuPointer pointer = 0;
  };
  std::vector<Sums> sums_;
};

}  // namespace flashlift::cuda
