// Random well-formed score programs over all operations, for tests that compare two evaluations of the same program.
#pragma once

#include <random>
#include <vector>

#include "flashlift/program.h"

namespace flashlift::score {

struct RandomProgramOptions {
  ProgramKind kind = ProgramKind::kMaskMod;
  int nodes = 12;  // besides inputs and constants
  bool floats = true;
  std::vector<Op> excluded;  // operations not to use
  // Tensors that a program may read, at indices made of its integers. It may also read none of them.
  std::vector<Capture> captures;
};

Program random_program(std::mt19937& random, const RandomProgramOptions& options);

}  // namespace flashlift::score
