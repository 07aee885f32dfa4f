// A readable report of what fusing a module found.
#pragma once

#include <cstdio>

#include "flashlift/stablehlo.h"

namespace flashlift::cli {

// Prints one paragraph for each candidate: where it is, and either the fused problem or the reason why it was not
// fused.
void print_candidates(const stablehlo::FuseResult& result, std::FILE* stream);

}  // namespace flashlift::cli
