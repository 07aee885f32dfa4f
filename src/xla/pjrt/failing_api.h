// What a client gets if there is no plugin to wrap, or if it cannot be loaded.
#pragma once

#include <string>

#include "xla/pjrt/c_api.h"

namespace flashlift::pjrt {

// A plugin of which every call fails with this message. GetPjrtApi() itself could only return NULL, and clients could
// not show the reason. May be called once in a process.
const Api* make_failing_api(std::string message);

}  // namespace flashlift::pjrt
