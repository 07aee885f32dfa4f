// The gradients of captured tensors (kernels/sm80/backward_captures.cu, or Hopper's in kernels/sm90): computed after
// the main part of any family.
#pragma once

#include <memory>
#include <vector>

#include "cuda/emit/backward_config.h"
#include "cuda/launch/backward/call_memory.h"
#include "cuda/launch/backward/main.h"

namespace flashlift::cuda {

class CaptureGradients {
 public:
  // For calls that request the gradient of some captured tensor, after the kernels of `main`.
  static Result<std::unique_ptr<const CaptureGradients>> compile(const Problem& problem, const Device& device,
                                                                 const BackwardConfig& main,
                                                                 const std::vector<bool>& wants_gradient,
                                                                 const KernelCompiler& compile_kernel);

  // Why the kernels cannot run a call. Errors: kUnsupported with the reason.
  Status accepts(const BackwardCall& call) const;
  // Device memory of its own for a call.
  int64_t workspace_bytes(const ForwardParams& params) const;
  // Whether the kernels store the sums of this captured tensor, as f32 numbers: it is a plane in which each element has
  // one thread. That fails if indices beyond the end of a dimension are clamped to its last element. All other captured
  // tensors need exact sums.
  bool stores(size_t capture, const BackwardCall& call) const;
  // Launches all that adds to the sums, which are cleared.
  Status launch(BackwardCall& call, CuPointer workspace) const;

 private:
  using Library = std::shared_ptr<const LoadedLibrary>;

  // The configurations of the kernels for tiles of queries and for tiles of keys.
  const ForwardConfig& of_queries() const { return config_.hopper ? config_.hopper->queries.config : config_.config; }
  const ForwardConfig& of_keys() const { return config_.hopper ? config_.hopper->keys.config : config_.config; }
  const ForwardConfig& of_planes() const { return config_.hopper ? config_.hopper->planes.config : config_.config; }
  PlaneLoad plane(size_t load, const BackwardCall& call) const;
  // The shape of each table of elements, for a call's captured tensors.
  std::vector<ElementTable> tables(const BackwardCall& call) const;
  int64_t plane_blocks(const PlaneLoad& plane, const ForwardParams& params) const;

  CaptureConfig config_;
  std::vector<CaptureLoad> loads_;
  Library portable_;
  Library hopper_queries_;
  Library hopper_keys_;
  Library hopper_planes_;
  int multiprocessors_ = 0;
  // Null where there is nothing for them to do.
  CuKernel rows_ = nullptr;
  CuKernel queries_ = nullptr;
  CuKernel keys_ = nullptr;
  CuKernel planes_ = nullptr;
};

}  // namespace flashlift::cuda
