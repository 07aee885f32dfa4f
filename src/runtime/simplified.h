// Problems as backends compile them.
#pragma once

#include "flashlift/problem.h"

namespace flashlift::runtime {

// Simplifies both programs and drops those that change nothing. Unused captures stay, so that the signature of a call
// is the same.
Problem simplified(const Problem& problem);

}  // namespace flashlift::runtime
