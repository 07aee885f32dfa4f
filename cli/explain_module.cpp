#include "cli/explain_module.h"

#include "cli/fuse_report.h"
#include "cli/input.h"
#include "cli/output.h"
#include "support/error.h"

namespace flashlift::cli {

Outcome explain_module(const std::string& file, bool code, bool json) {
  if (code) {
    return invalid_argument("--code needs a problem, got the module {}; give it one of the problems found in there",
                            file);
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const std::string text, read_input(file));
  FLASHLIFT_ASSIGN_OR_RETURN(const stablehlo::FuseResult fused,
                             stablehlo::fuse(text, {.as = stablehlo::FuseAs::kCustomCall, .name = input_name(file)}));
  if (json) {
    print_json({{"candidates", Json::parse(stablehlo::report_json(fused))}});
  } else {
    print_candidates(fused, stdout);
  }
  return kSuccess;
}

}  // namespace flashlift::cli
