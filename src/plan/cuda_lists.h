// The CUDA backend's lists.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "cuda/emit/backward_config.h"
#include "cuda/emit/forward_config.h"
#include "cuda/launch/driver.h"

namespace flashlift::plan {

// Compute capabilities times ten that have a kernel's instructions.
struct Architectures {
  int oldest;
  int newest;
};

struct CudaForward {
  cuda::KernelKind kind;  // the kernel, and how its configuration is chosen
  Architectures architectures;
  // It refuses calls with more queries, unless a caller names it.
  cuda::LengthClass longest;
  // True: its tiles depend on the length, and it is compiled for each class of lengths. False: it is compiled once for
  // all.
  bool tiles_by_length;

  // The class of lengths that the kernel of these calls is compiled for.
  cuda::LengthClass compiled_for(cuda::LengthClass length) const { return tiles_by_length ? length : longest; }
  const char* name() const { return to_string(kind); }
};

struct CudaBackward {
  cuda::BackwardKind kind;
  Architectures architectures;

  const char* name() const { return to_string(kind); }
};

std::span<const CudaForward> cuda_forward_list();
std::span<const CudaBackward> cuda_backward_list();

// The reason why an implementation refuses these calls of a verified and simplified problem; none if it accepts.
std::optional<std::string> refusal(const CudaForward& row, const Problem& problem, cuda::LengthClass length,
                                   const cuda::Device& device, bool by_name);
std::optional<std::string> refusal(const CudaBackward& row, const Problem& problem, const cuda::Device& device);

// The same, for a device alone.
std::optional<std::string> refusal(const Architectures& architectures, const cuda::Device& device);

// Whether the implementation runs its kernel of five products if the problem also has `residual`.
bool reads_residual(const CudaBackward& row, const Problem& problem, const cuda::Device& device);

}  // namespace flashlift::plan
