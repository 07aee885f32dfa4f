// Making and running the tape of an IntervalProgram.
#pragma once

#include <span>

#include "score/intervals.h"

namespace flashlift::score {

// Compiles a program for a domain. Everything that the domain decides is folded; dead instructions are dropped.
IntervalProgram::Tape compile_tape(const Program& program, std::span<const TensorView> captures,
                                   const IntervalProgram::Domain& domain);

// What one instruction gives over the slots before it.
Interval run_instruction(const IntervalProgram::Tape& tape, const IntervalProgram::Instruction& instruction,
                         const Interval* slots);

}  // namespace flashlift::score
