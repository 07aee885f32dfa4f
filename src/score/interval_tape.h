// Compiles and runs the tape of an IntervalProgram.
#pragma once

#include <span>

#include "score/intervals.h"

namespace flashlift::score {

// Compiles a program for a domain into `tape`, whose memory is reused. Values that are constant on the domain are
// folded, and dead instructions removed.
void compile_tape(const Program& program, std::span<const TensorView> captures, const IntervalProgram::Domain& domain,
                  IntervalProgram::Tape& tape);

// The result of one instruction from the slots before it.
Interval run_instruction(const IntervalProgram::Tape& tape, const IntervalProgram::Instruction& instruction,
                         const Interval* slots);

}  // namespace flashlift::score
