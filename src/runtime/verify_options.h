// The checks of options that compile() and tune() share.
#pragma once

#include "flashlift/attention.h"
#include "flashlift/tuning.h"

namespace flashlift::runtime {

// Errors: values that DeviceKind and TuningPolicy do not have, and another CPU than 0. Whether the build has the
// backend and the machine the GPU is seen later.
Status verify_options(DeviceKind device, int ordinal, TuningPolicy policy);

}  // namespace flashlift::runtime
