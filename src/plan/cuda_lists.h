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
  cuda::KernelKind kind;  // which kernel, and how its configuration is chosen
  Architectures architectures;
  // Calls with more queries are left to others, unless this one is asked for by name.
  cuda::LengthClass longest;
  // Its tiles depend on the length: it is compiled for each class of calls. Otherwise once for all.
  bool tiles_by_length;

  // The class that the kernel of such calls is compiled for.
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

// Why an implementation does not take such calls of a problem, which is verified and simplified; none if it does.
std::optional<std::string> refusal(const CudaForward& row, const Problem& problem, cuda::LengthClass length,
                                   const cuda::Device& device, bool by_name);
std::optional<std::string> refusal(const CudaBackward& row, const Problem& problem, const cuda::Device& device);

// The same of a device alone.
std::optional<std::string> refusal(const Architectures& architectures, const cuda::Device& device);

// Whether the implementation runs its kernel of five products where the problem asks for `residual` too.
bool reads_residual(const CudaBackward& row, const Problem& problem, const cuda::Device& device, bool wants_captures);

}  // namespace flashlift::plan
