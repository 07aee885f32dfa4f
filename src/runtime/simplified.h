// Problems as backends compile them.
#pragma once

#include "flashlift/problem.h"

namespace flashlift::runtime {

// Programs simplified, and left out where they change nothing. The captured tensors stay: a call brings them all.
Problem simplified(const Problem& problem);

}  // namespace flashlift::runtime
