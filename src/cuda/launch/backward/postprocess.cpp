#include "cuda/launch/backward/postprocess.h"

#include <algorithm>

#include "cuda/launch/backward/launch.h"

namespace flashlift::cuda {

Status Postprocess::compile(const Problem& problem, const Device& device, const RowStatistics& statistics,
                            const std::vector<bool>& wants_gradient, const KernelCompiler& compile_kernel) {
  const bool captures = std::ranges::find(wants_gradient, true) != wants_gradient.end();
  if (problem.sinks == 0 && !captures) {
    return {};
  }
  const KernelSource source = postprocess_source(problem, device.architecture, statistics.tile > 0);
  FLASHLIFT_ASSIGN_OR_RETURN(library_, LoadedLibrary::compile(source, compile_kernel));
  if (problem.sinks > 0) {
    FLASHLIFT_ASSIGN_OR_RETURN(sinks_, library_->kernel("flashlift_backward_sinks", device.handle, 0));
  }
  if (captures) {
    FLASHLIFT_ASSIGN_OR_RETURN(store_capture_, library_->kernel("flashlift_store_capture", device.handle, 0));
  }
  return {};
}

Status Postprocess::launch(BackwardCall& call, const CaptureSums& sums) const {
  constexpr int kSinkThreads = 256;
  if (call.arguments.d_sinks) {
    const int64_t heads = call.arguments.d_sinks->rank == 1 ? 1 : call.problem.q_heads;
    const Grid grid{.x = static_cast<unsigned>(heads * call.problem.sinks), .threads = kSinkThreads};
    void* parameters[] = {&call.forward, &call.backward, &call.row_tiles};
    FLASHLIFT_RETURN_IF_ERROR(cuda::launch(call, sinks_, grid, parameters));
  }
  return sums.store(call, store_capture_);
}

}  // namespace flashlift::cuda
