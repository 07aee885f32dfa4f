// Hopper's main part: a kernel for d_q, which also corrects the rows' deltas, followed by one kernel for d_k and d_v,
// or one for each.
#pragma once

#include "cuda/launch/backward/main.h"

namespace flashlift::cuda {

Result<std::unique_ptr<const BackwardMain>> compile_main_sm90(const Problem& problem, const Device& device,
                                                              const Sm90Backward& config,
                                                              const KernelCompiler& compile_kernel);

}  // namespace flashlift::cuda
