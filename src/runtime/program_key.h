// The cache key of compiled programs.
#pragma once

#include <string>

#include "cpu/tile/isa.h"
#include "runtime/simplified.h"

namespace flashlift::runtime {

// Contains everything that the code generated for the problem's programs depends on. Programs that differ only in their
// spelling and in the names of captured tensors have equal keys: a key refers to captured tensors by their position in
// the problem.
std::string program_key(const SimplifiedProblem& problem, cpu::Isa isa);

}  // namespace flashlift::runtime
