// What the database of what was tuned calls a device.
#pragma once

#include <string>

#include "flashlift/attention.h"

namespace flashlift::runtime {

// The processor's or the GPU's name with what else decides how fast a kernel is there. Errors: no such GPU.
Result<std::string> tuning_device(DeviceKind device, int ordinal);

// The implementations of a pass that take a problem if they are asked for by name, but for the portable ones that a
// CPU without anything better has. None where the device is not there.
std::vector<std::string> implementations_by_name(const Problem& problem, const CompileOptions& options, bool backward);

}  // namespace flashlift::runtime
