// The portable main part: one kernel for all gradients, or separate kernels for row statistics, for d_q, and for d_k
// and d_v, each of which computes the scores.
#pragma once

#include "cuda/launch/backward/main.h"

namespace flashlift::cuda {

Result<std::unique_ptr<const BackwardMain>> compile_main_sm80(const Problem& problem, const Device& device,
                                                              const Sm80Backward& config,
                                                              const KernelCompiler& compile_kernel);

}  // namespace flashlift::cuda
