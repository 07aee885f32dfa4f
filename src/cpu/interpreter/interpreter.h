// Score and mask programs run one score at a time, as the compiled ones do: for processors and builds without LLVM.
#pragma once

#include <memory>
#include <vector>

#include "cpu/score_function.h"

namespace flashlift::cpu {

// As compile_score() and compile_gradient(), which they stand for. Calls allocate a little memory.
std::shared_ptr<const CompiledScore> interpret_score(const Problem& problem, Isa isa);
std::shared_ptr<const CompiledGradient> interpret_gradient(const Problem& problem, Isa isa,
                                                           const std::vector<bool>& wants_gradient);

}  // namespace flashlift::cpu
