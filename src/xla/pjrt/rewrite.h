// A program that a client wants to compile, fused where that can be done and is safe, and what is told about it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "xla/pjrt/c_api.h"

namespace flashlift::pjrt {

struct Report {
  std::string module;      // its name, where that is known
  std::string form;        // as form_of() says, or the program's format
  size_t bytes = 0;        // as they came
  std::string platform;    // what the program is compiled for
  size_t fused = 0;        // how many attentions were replaced
  std::string candidates;  // the JSON array of flashlift_fused_report(), or empty
  std::string reason;      // why the program went down as it came; empty if it did not
  double fuse_ms = 0;      // from the look at its bytes to the rewritten module
  double compile_ms = 0;
  bool failed = false;  // the wrapped plugin refused what came
};

struct Rewritten {
  std::string_view code;        // empty: the program goes down byte for byte as it came
  std::shared_ptr<void> owner;  // of the code, which may be hundreds of megabytes
  Report report;
};

Rewritten rewrite(const Program& program, std::string_view options, std::string_view platform);

// A line in the log, and one in the file that FLASHLIFT_PJRT_REPORT names.
void publish(const Report& report);

}  // namespace flashlift::pjrt
