#include "cli/fuse_report.h"

#include <fmt/format.h>

namespace flashlift::cli {

void print_candidates(const stablehlo::FuseResult& result) {
  if (result.candidates.empty()) {
    fmt::print("nothing in this module looks like attention\n");
    return;
  }
  for (const stablehlo::Candidate& candidate : result.candidates) {
    fmt::print("{} in @{}: {}\n", candidate.location, candidate.function, candidate.fused ? "fused" : "left as it is");
    fmt::print("  {}\n", candidate.reason);
    if (candidate.fused) {
      fmt::print("  {}\n", candidate.problem);
    }
  }
  fmt::print("{} of {} fused\n", result.fused_count(), result.candidates.size());
}

}  // namespace flashlift::cli
