// The CUDA backend behind flashlift::Attention.
#pragma once

#include <memory>

#include "runtime/implementation.h"

namespace flashlift::runtime {

// Tries the GPU's implementations in their order. Errors: see Attention::compile; kNotFound without a driver or GPU.
Result<std::shared_ptr<const Attention::Implementation>> compile_cuda(const Problem& problem,
                                                                      const CompileOptions& options);

}  // namespace flashlift::runtime
