// What compiled programs are cached by.
#pragma once

#include <string>

#include "cpu/tile/isa.h"
#include "runtime/simplified.h"

namespace flashlift::runtime {

// Everything that code generated for the problem's programs depends on: equal for programs that differ only in the
// names of captured tensors and in how they are written. Captured tensors are known by their places in the problem.
std::string program_key(const SimplifiedProblem& problem, cpu::Isa isa);

}  // namespace flashlift::runtime
