// Other ways to run one of the CPU's implementations, for tuning.
#pragma once

#include <vector>

#include "flashlift/problem.h"
#include "flashlift/tuning.h"

namespace flashlift::plan {

// Every combination of tiles, splits and threads that may run the problem differently, without the library's own
// choice; those that differ in one thing come first. To let a size be tuned, add its values here.
std::vector<Tuning> cpu_variants(const Problem& problem, bool backward, const std::string& implementation,
                                 int concurrency);

}  // namespace flashlift::plan
