// The default executor of the CPU backend: oneTBB.
#pragma once

#include "flashlift/attention.h"

namespace flashlift::runtime {

// All cores, or FLASHLIFT_THREADS of them. Lives as long as the process. In a child by fork() of a process that had
// used it, the calling thread alone.
Executor& default_executor();

}  // namespace flashlift::runtime
