// Fuses the attention of a program that a client compiles, if this is possible and safe, and reports the result.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "xla/pjrt/c_api.h"

namespace flashlift::pjrt {

struct Report {
  std::string module;      // its name, if known
  std::string form;        // the result of form_of(), or the program's format
  size_t bytes = 0;        // of the original program
  std::string platform;    // for which the program is compiled
  size_t fused = 0;        // number of attentions that were replaced
  std::string candidates;  // the JSON array of flashlift_fused_report(), or empty
  std::string reason;      // why the program was passed on unchanged; empty if it was changed
  double fuse_ms = 0;      // from the first look at its bytes to the rewritten module
  double compile_ms = 0;
  bool failed = false;  // the wrapped plugin refused the program
};

struct Rewritten {
  std::string_view code;        // empty: the original program is passed on unchanged
  std::shared_ptr<void> owner;  // of the code, which may be hundreds of megabytes
  Report report;
};

Rewritten rewrite(const Program& program, std::string_view options, std::string_view platform);

// Writes a line to the log, and one to the file in FLASHLIFT_PJRT_REPORT.
void publish(const Report& report);

}  // namespace flashlift::pjrt
