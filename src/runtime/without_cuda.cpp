// The errors of CUDA functions in a build without CUDA.
#include "flashlift/precompile.h"
#include "support/error.h"

namespace flashlift {
namespace {

Error no_cuda() { return unsupported("this build has no CUDA backend: configure it with FLASHLIFT_CUDA=ON"); }

}  // namespace

Result<std::vector<PrecompiledKernel>> precompile(const std::vector<Problem>& /*problems*/,
                                                  const PrecompileOptions& /*options*/) {
  return no_cuda();
}

Result<std::vector<int>> architectures_here() { return no_cuda(); }

}  // namespace flashlift
