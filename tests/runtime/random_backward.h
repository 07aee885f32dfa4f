// Runs one randomly drawn problem forward and backward, and compares its gradients with the oracle's.
#pragma once

#include "drawn_problem.h"

namespace flashlift::testing {

// Also checks that the gradients are the same for any number of threads.
DrawnProblem check_random_backward(unsigned long seed, const DrawOptions& options = {});

}  // namespace flashlift::testing
