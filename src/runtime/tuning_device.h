// The names of devices in the database of tuning results.
#pragma once

#include <string>

#include "flashlift/attention.h"

namespace flashlift::runtime {

// The name of the processor or GPU, with everything else that decides how fast a kernel is on it. Errors: no such GPU.
Result<std::string> tuning_device(DeviceKind device, int ordinal);

// The implementations of a pass that accept a problem if a caller names them, except the portable ones, which a CPU
// uses only if it has nothing better. None if the device does not exist.
std::vector<std::string> implementations_by_name(const Problem& problem, const CompileOptions& options, bool backward);

}  // namespace flashlift::runtime
