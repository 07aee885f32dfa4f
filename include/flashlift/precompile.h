// Compiling a GPU's kernels before they are needed, on any machine: into the cache on disk, where calls find them.
//
//   Result<std::vector<PrecompiledKernel>> kernels = precompile({problem}, {.architectures = {90}});
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/result.h"

#pragma GCC visibility push(default)  // this is what the shared library exports

namespace flashlift {

struct PrecompileOptions {
  // Compute capabilities times ten: 80, 86, 89, 90, 100, 120. A kernel runs on its own one only.
  std::vector<int> architectures;
  // As CompileOptions::implementation.
  std::string implementation;
  // For calls with so many queries. Empty: as many as the problems have.
  std::vector<int64_t> q_lens;
  // The backward pass too, and of which captured tensors it gives gradients, by name.
  bool backward = false;
  std::vector<std::string> gradients;
};

struct PrecompiledKernel {
  size_t problem = 0;          // which of the given ones; what several share is listed for each
  int architecture = 0;        // compute capability times ten
  std::string implementation;  // "cuda_sm90"
  std::string kernel;          // its source: "sm90/forward"
  bool was_cached = false;
  double seconds = 0;  // that it took to compile
};

// Compiles what calls of these problems run, side by side on all cores, unless the cache has it. It needs NVRTC and no
// GPU. A call finds the kernels if its machine has the cache's folder (FLASHLIFT_CACHE_DIR), the same version of
// Flashlift and the same version of NVRTC. Errors: what verify(problem) says; kInvalidArgument where no architecture is
// named, a length is below 1 or a name is no captured tensor's; kUnsupported with each implementation's reason where
// none takes a problem; what NVRTC says; a folder that cannot be used. What was compiled by then stays in the cache.
Result<std::vector<PrecompiledKernel>> precompile(const std::vector<Problem>& problems,
                                                  const PrecompileOptions& options);

// The architectures of this machine's GPUs, each once, ascending. Errors: what is missing, where there is no driver.
Result<std::vector<int>> architectures_here();

}  // namespace flashlift

#pragma GCC visibility pop
