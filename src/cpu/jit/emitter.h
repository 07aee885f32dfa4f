// Builds the LLVM function for a pair of score and mask programs.
#pragma once

#include <llvm/IR/Module.h>

#include <memory>

#include "cpu/tile/isa.h"
#include "flashlift/problem.h"

namespace flashlift::cpu {

inline constexpr const char* kMaskedName = "flashlift_score_masked";
inline constexpr const char* kUnmaskedName = "flashlift_score_unmasked";

// Both functions of CompiledScore (the unmasked one only where there is a score_mod).
std::unique_ptr<llvm::Module> emit_score_module(llvm::LLVMContext& context, const Problem& problem, Isa isa);

}  // namespace flashlift::cpu
