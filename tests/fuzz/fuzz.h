// Shared by the fuzzers.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "flashlift/result.h"

namespace flashlift::fuzz {

// Ends the program where something that must hold does not, so that libFuzzer keeps the input.
inline void require(bool holds, std::string_view what, std::string_view detail = "") {
  if (!holds) {
    std::fprintf(stderr, "does not hold: %.*s\n%.*s\n", static_cast<int>(what.size()), what.data(),
                 static_cast<int>(detail.size()), detail.data());
    std::abort();
  }
}

// Text from outside is never our defect, and an error without a message helps nobody.
inline void require_callers_error(const Error& error) {
  require(error.kind == ErrorKind::kInvalidArgument || error.kind == ErrorKind::kUnsupported,
          "an error about text is the caller's", error.message);
  require(!error.message.empty(), "an error has a message");
}

}  // namespace flashlift::fuzz
