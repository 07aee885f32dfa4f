// Modules as bytes: text, MLIR bytecode of StableHLO, or VHLO of a version (StableHLO's portable artifacts).
#pragma once

#include <string>

#include "stablehlo/bytecode/read.h"

namespace flashlift::stablehlo {

enum class VersionRule : uint8_t {
  kExactly,
  kAtLeast,  // a later one where the module needs it
};

// What a caller asks for.
struct Target {
  Format format;
  VersionRule rule = VersionRule::kExactly;
};

// "text", "bytecode", "vhlo=1.9.0", "vhlo" (the oldest version that says all of the module) or "" (as it was given, in
// a later version where that is needed).
Result<Target> parse_target(std::string_view text, const Format& given);

// expected_size: about how many bytes it will take, if that is known, to reserve them at once.
// Errors: kUnsupported for what the format or its version cannot say; the message names the oldest version that can.
Result<std::string> write_module(const Module& module, const Format& format, VersionRule rule = VersionRule::kExactly,
                                 size_t expected_size = 0);

}  // namespace flashlift::stablehlo
