// Making and running the tape of an IntervalProgram.
#pragma once

#include <span>

#include "score/intervals.h"

namespace flashlift::score {

// Compiles a program for a domain into `tape`, whose memory is reused. Everything that the domain decides is folded;
// dead instructions are dropped.
void compile_tape(const Program& program, std::span<const TensorView> captures, const IntervalProgram::Domain& domain,
                  IntervalProgram::Tape& tape);

// What one instruction gives over the slots before it.
Interval run_instruction(const IntervalProgram::Tape& tape, const IntervalProgram::Instruction& instruction,
                         const Interval* slots);

}  // namespace flashlift::score
