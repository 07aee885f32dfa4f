// Any text is either an error or a problem whose printed form reads as the same problem.
#include "flashlift/problem.h"
#include "fuzz/fuzz.h"

namespace flashlift::fuzz {
namespace {

void check(std::string_view text) {
  const auto problem = parse_problem(text);
  if (!problem.ok()) {
    require_callers_error(problem.error());
    return;
  }
  require(verify(*problem).ok(), "what was read is a problem");
  const std::string printed = print(*problem);
  const auto again = parse_problem(printed);
  require(again.ok() && print(*again) == printed, "the printed form is read back", printed);
}

}  // namespace
}  // namespace flashlift::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashlift::fuzz::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
