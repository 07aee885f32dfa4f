#pragma once

#include <string>

#include "xla/pjrt/c_api.h"

namespace flashlift::pjrt {

// A plugin of which every call fails with this message. GetPjrtApi() itself can only return NULL, of which a client
// cannot tell its user the reason. For one call in a process.
const Api* make_failing_api(std::string message);

}  // namespace flashlift::pjrt
