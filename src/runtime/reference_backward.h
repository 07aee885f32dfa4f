// The backward pass by the fp64 oracle, until the CPU has a fused one.
#pragma once

#include "flashlift/backward.h"

namespace flashlift::runtime {

// The arguments have been verified against the problem.
Status run_reference_backward(const Problem& problem, const BackwardArguments& arguments);

}  // namespace flashlift::runtime
