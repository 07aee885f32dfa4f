// One randomly drawn problem forward and backward, its gradients compared with the oracle.
#pragma once

#include "drawn_problem.h"

namespace flashlift::testing {

// The gradients have to be the same for any number of threads, too.
DrawnProblem check_random_backward(unsigned long seed, const DrawOptions& options = {});

}  // namespace flashlift::testing
