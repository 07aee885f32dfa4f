#include "support/version.h"

namespace flashlift {

const char* version() { return FLASHLIFT_VERSION; }

}  // namespace flashlift
