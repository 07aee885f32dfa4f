// For processors whose capabilities are not detected.
#include "cpu/tile/capabilities.h"

namespace flashlift::cpu {

Capabilities detect_capabilities() { return {}; }

}  // namespace flashlift::cpu
