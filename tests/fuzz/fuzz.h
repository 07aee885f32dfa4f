// Shared by the fuzzers.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "flashlift/result.h"

namespace flashlift::fuzz {

// Ends the program if a condition does not hold, so that libFuzzer keeps the input.
inline void require(bool holds, std::string_view what, std::string_view detail = "") {
  if (!holds) {
    std::fprintf(stderr, "does not hold: %.*s\n%.*s\n", static_cast<int>(what.size()), what.data(),
                 static_cast<int>(detail.size()), detail.data());
    std::abort();
  }
}

// Text from outside must never cause an internal error, and each error must have a message.
inline void require_callers_error(const Error& error) {
  require(error.kind == ErrorKind::kInvalidArgument || error.kind == ErrorKind::kUnsupported,
          "an error about text is the caller's", error.message);
  require(!error.message.empty(), "an error has a message");
}

}  // namespace flashlift::fuzz
