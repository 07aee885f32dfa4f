// Runs one randomly drawn forward problem, and compares it with the oracle.
#pragma once

#include "drawn_problem.h"

namespace flashlift::testing {

DrawnProblem check_random_forward(unsigned long seed, const DrawOptions& options = {});

}  // namespace flashlift::testing
