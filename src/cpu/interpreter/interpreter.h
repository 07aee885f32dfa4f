// Runs score and mask programs one score at a time, with the same interface as compiled ones, on processors and in
// builds without LLVM.
#pragma once

#include <memory>
#include <vector>

#include "cpu/score_function.h"

namespace flashlift::cpu {

// Replace compile_score() and compile_gradient(). Their functions allocate a little memory in each call.
std::shared_ptr<const CompiledScore> interpret_score(const Problem& problem, Isa isa);
std::shared_ptr<const CompiledGradient> interpret_gradient(const Problem& problem, Isa isa,
                                                           const std::vector<bool>& wants_gradient);

}  // namespace flashlift::cpu
