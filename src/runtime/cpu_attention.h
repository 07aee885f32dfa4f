// The CPU backend behind flashlift::Attention.
#pragma once

#include <memory>

#include "runtime/implementation.h"

namespace flashlift::runtime {

// Tries the CPU's implementations in their order. Errors: see Attention::compile.
Result<std::shared_ptr<const Attention::Implementation>> compile_cpu(const Problem& problem,
                                                                     const CompileOptions& options);

}  // namespace flashlift::runtime
