// Runs one randomly drawn problem forward and backward, and compares its gradients with the oracle's.
#pragma once

#include "drawn_problem.h"

namespace flashlift::testing {

// The gradients have to be the same for any number of threads, too.
DrawnProblem check_random_backward(unsigned long seed, const DrawOptions& options = {});

}  // namespace flashlift::testing
