// Builds the LLVM functions for a pair of score and mask programs.
#pragma once

#include <llvm/IR/Module.h>

#include <memory>
#include <vector>

#include "cpu/tile/isa.h"
#include "flashlift/problem.h"

namespace flashlift::cpu {

inline constexpr const char* kMaskedName = "flashlift_score_masked";
inline constexpr const char* kUnmaskedName = "flashlift_score_unmasked";

// Both functions of CompiledScore (the unmasked one only where there is a score_mod).
std::unique_ptr<llvm::Module> emit_score_module(llvm::LLVMContext& context, const Problem& problem, Isa isa);

inline constexpr const char* kMaskedGradientName = "flashlift_gradient_masked";
inline constexpr const char* kUnmaskedGradientName = "flashlift_gradient_unmasked";

// Both functions of CompiledGradient (the unmasked one only where there is a score_mod).
std::unique_ptr<llvm::Module> emit_gradient_module(llvm::LLVMContext& context, const Problem& problem, Isa isa,
                                                   const std::vector<bool>& wants_gradient);

}  // namespace flashlift::cpu
