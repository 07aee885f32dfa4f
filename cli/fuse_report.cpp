#include "cli/fuse_report.h"

#include <fmt/format.h>

#include "support/printable.h"

namespace flashlift::cli {

void print_candidates(const stablehlo::FuseResult& result, std::FILE* stream) {
  if (result.candidates.empty()) {
    fmt::print(stream, "nothing in this module looks like attention\n");
    return;
  }
  for (const stablehlo::Candidate& candidate : result.candidates) {
    fmt::print(stream, "{} in @{}: {}\n", candidate.location, printable_line(candidate.function),
               candidate.fused ? "fused" : "left as it is");
    fmt::print(stream, "  {}\n", candidate.reason);
    if (candidate.fused) {
      fmt::print(stream, "  {}\n", candidate.problem);
    }
  }
  fmt::print(stream, "{} of {} fused\n", result.fused_count(), result.candidates.size());
}

}  // namespace flashlift::cli
