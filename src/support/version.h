// The version of this build, from CMakeLists.txt.
#pragma once

namespace flashlift {

// "0.1.0"
const char* version();

}  // namespace flashlift
