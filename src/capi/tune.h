// What compiling and tuning read alike.
#pragma once

#include <cstdint>

#include "flashlift/result.h"
#include "flashlift/tuning.h"

namespace flashlift::capi {

// A FlashliftTuningPolicy. Errors: another number.
Result<TuningPolicy> to_policy(int32_t policy);

}  // namespace flashlift::capi
