// Shared by compiling and tuning.
#pragma once

#include <cstdint>

#include "flashlift/result.h"
#include "flashlift/tuning.h"

namespace flashlift::capi {

// Converts a FlashliftTuningPolicy. Fails for any other number.
Result<TuningPolicy> to_policy(int32_t policy);

}  // namespace flashlift::capi
