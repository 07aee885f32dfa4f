// What fusing a module found, for people.
#pragma once

#include <cstdio>

#include "flashlift/stablehlo.h"

namespace flashlift::cli {

// One paragraph a candidate: where it is, whether it was fused, and why or as what.
void print_candidates(const stablehlo::FuseResult& result, std::FILE* stream);

}  // namespace flashlift::cli
