// The default executor of the CPU backend: oneTBB.
#pragma once

#include "flashlift/attention.h"

namespace flashlift::runtime {

// All cores, or FLASHLIFT_THREADS of them. Lives as long as the process. After a fork(), if the parent used it, a child
// runs on the calling thread alone.
Executor& default_executor();

}  // namespace flashlift::runtime
