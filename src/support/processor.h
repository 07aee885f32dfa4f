// The processor that this process runs on.
#pragma once

#include <string>

namespace flashlift {

// What it calls itself, where Linux tells; otherwise "unknown".
std::string processor_name();

}  // namespace flashlift
