// A user's program that fuses modules. Text that is not a module gives an error, not a crash.
#include "flashlift/stablehlo.h"

int main() {
  const auto fused = flashlift::stablehlo::fuse("this is no module");
  return !fused && fused.error().kind == flashlift::ErrorKind::kInvalidArgument ? 0 : 1;
}
