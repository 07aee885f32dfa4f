// Writes modules as bytes: text, MLIR bytecode of StableHLO, or VHLO of a version (StableHLO's portable artifacts).
#pragma once

#include <string>

#include "stablehlo/bytecode/read.h"

namespace flashlift::stablehlo {

enum class VersionRule : uint8_t {
  kExactly,
  kAtLeast,  // a later version if the module requires it
};

// The requested format.
struct Target {
  Format format;
  VersionRule rule = VersionRule::kExactly;
};

// Reads "text", "bytecode", "vhlo=1.9.0", "vhlo" (the oldest version that can express the module) or "" (the given
// format, in a later version if necessary).
Result<Target> parse_target(std::string_view text, const Format& given);

// expected_size: the approximate size of the result, if known, which is reserved at once. Errors: kUnsupported if the
// format or its version cannot express the module; the message names the oldest version that can.
Result<std::string> write_module(const Module& module, const Format& format, VersionRule rule = VersionRule::kExactly,
                                 size_t expected_size = 0);

}  // namespace flashlift::stablehlo
