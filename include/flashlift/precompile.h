// Compiles a GPU's kernels in advance, on any machine, into the cache on disk, where calls find them.
//
//   Result<std::vector<PrecompiledKernel>> kernels = precompile({problem}, {.architectures = {90}});
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/result.h"

#pragma GCC visibility push(default)  // the shared library exports these declarations

namespace flashlift {

struct PrecompileOptions {
  // Compute capabilities times ten: 80, 86, 89, 90, 100, 120. A kernel runs only on the architecture that it was
  // compiled for.
  std::vector<int> architectures = {};
  // As in CompileOptions.
  std::string implementation = {};
  // The numbers of queries of the calls. Empty: the problems' own numbers. Which kernels run also depends on the
  // problems' batches and numbers of keys.
  std::vector<int64_t> q_lens = {};
  // Whether to compile the backward pass, and the names of the captured tensors whose gradients it computes. A name
  // implies `backward`.
  bool backward = false;
  std::vector<std::string> gradients = {};
};

struct PrecompiledKernel {
  size_t problem = 0;          // index of the problem; a kernel that several problems share is listed for each
  int architecture = 0;        // compute capability times ten
  std::string implementation;  // "cuda_sm90"
  std::string kernel;          // its source: "sm90/forward"
  bool was_cached = false;
  double seconds = 0;  // the time to compile it
};

// Compiles the kernels that calls of these problems run, in parallel on all cores, unless the cache has them. This
// needs NVRTC, but no GPU. A call finds the kernels if its machine has the cache's folder (FLASHLIFT_CACHE_DIR), the
// same version of Flashlift and the same version of NVRTC. Errors: those of verify(problem); kInvalidArgument if no
// architecture is named, a length is below 1 or a name is not that of a captured tensor; kUnsupported with each
// implementation's reason if none accepts a problem; NVRTC's errors; a folder that cannot be used. Kernels that were
// compiled before the error stay in the cache.
Result<std::vector<PrecompiledKernel>> precompile(const std::vector<Problem>& problems,
                                                  const PrecompileOptions& options);

// The architectures of this machine's GPUs, each once, ascending. Errors: a missing driver.
Result<std::vector<int>> architectures_here();

}  // namespace flashlift

#pragma GCC visibility pop
