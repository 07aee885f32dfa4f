#include "runtime/verify_options.h"

#include "support/error.h"

namespace flashlift::runtime {

Status verify_options(DeviceKind device, int ordinal, TuningPolicy policy) {
  if (device > DeviceKind::kCuda) {
    return invalid_argument("device {} is unknown: expected DeviceKind::kCpu or kCuda", static_cast<int>(device));
  }
  if (device == DeviceKind::kCpu && ordinal != 0) {
    return invalid_argument("the device is CPU {}; expected CPU 0, which stands for all of them", ordinal);
  }
  if (policy > TuningPolicy::kWrite) {
    return invalid_argument(
        "tuning policy {} is unknown: expected TuningPolicy::kFromEnvironment, kOff, kRead or kWrite",
        static_cast<int>(policy));
  }
  return {};
}

}  // namespace flashlift::runtime
