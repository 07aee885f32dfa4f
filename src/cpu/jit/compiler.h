// Score and mask programs compiled by LLVM for this processor.
#pragma once

#include "cpu/score_function.h"

namespace flashlift::cpu {

// Implement compile_score(), compile_gradient() and score_assembly() for x86 kernels.
Result<std::shared_ptr<const CompiledScore>> jit_score(const Problem& problem, Isa isa);
Result<std::shared_ptr<const CompiledGradient>> jit_gradient(const Problem& problem, Isa isa,
                                                             const std::vector<bool>& wants_gradient);
Result<std::string> jit_assembly(const Problem& problem, Isa isa);

// Of the problem's programs together.
size_t count_nodes(const Problem& problem);

}  // namespace flashlift::cpu
