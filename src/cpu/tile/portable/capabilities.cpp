// Of processors of which nothing is asked.
#include "cpu/tile/capabilities.h"

namespace flashlift::cpu {

Capabilities detect_capabilities() { return {}; }

}  // namespace flashlift::cpu
