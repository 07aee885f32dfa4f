// The processor that this process runs on.
#pragma once

#include <string>

namespace flashlift {

// The name that Linux reports; otherwise "unknown".
std::string processor_name();

}  // namespace flashlift
