// Other ways to run one of the CPU's implementations, for tuning.
#pragma once

#include <vector>

#include "flashlift/problem.h"
#include "flashlift/tuning.h"

namespace flashlift::plan {

// Every combination of tiles, splits and threads that may run the problem differently, except the library's own choice.
// Those that differ from it in a single value come first. To tune another size, add its values here.
std::vector<Tuning> cpu_variants(const Problem& problem, bool backward, const std::string& implementation,
                                 int concurrency);

}  // namespace flashlift::plan
