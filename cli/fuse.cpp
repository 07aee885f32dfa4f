// flashlift fuse: a StableHLO module in, the same module with its attention fused out.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "cli/fuse_report.h"
#include "cli/output.h"
#include "support/error.h"
#include "support/files.h"

namespace flashlift::cli {
namespace {

struct Options {
  std::string module;
  std::string output;
  std::string as = "custom_call";
  std::string report;
  bool gradients = false;
  bool json = false;
};

Outcome run_fuse(const Options& options) {
  if (!options.report.empty() && options.report == options.output) {
    return invalid_argument("-o and --report both name {}; give the report a file of its own", options.output);
  }
  if (options.gradients && options.as == "composite") {
    return invalid_argument("--gradients and --as composite: gradients are fused as custom calls only; leave out one");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const std::string text, read_file(options.module));
  const auto as = options.as == "composite" ? stablehlo::FuseAs::kComposite : stablehlo::FuseAs::kCustomCall;
  FLASHLIFT_ASSIGN_OR_RETURN(const stablehlo::FuseResult fused,
                             stablehlo::fuse(text, {.as = as, .name = options.module, .gradients = options.gradients}));
  const Json candidates = Json::parse(stablehlo::report_json(fused));
  Json report = {{"module", options.module},
                 {"output", options.output},
                 {"as", options.as},
                 {"fused", fused.fused_count()},
                 {"candidates", candidates}};
  FLASHLIFT_RETURN_IF_ERROR(write_file_atomically(options.output, fused.module));
  if (!options.report.empty()) {
    FLASHLIFT_RETURN_IF_ERROR(
        write_file_atomically(options.report, report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"));
  }
  if (options.json) {
    print_json(report);
  } else {
    print_candidates(fused);
  }
  return kSuccess;
}

}  // namespace

void add_fuse(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("fuse", "Replace the attention in a StableHLO module by fused calls");
  auto options = std::make_shared<Options>();
  command->add_option("MODULE", options->module, "File name of the module, as StableHLO or generic MLIR text")
      ->required();
  command->add_option("-o,--output", options->output, "Where the fused module goes")->required();
  command
      ->add_option("--as", options->as,
                   "custom_call: runs where Flashlift's handler is registered; composite: runs anywhere, keeping the "
                   "original as its decomposition")
      ->check(CLI::IsMember({"custom_call", "composite"}))
      ->option_text("TEXT [custom_call]");
  command->add_flag("--gradients", options->gradients,
                    "Fuse attention with its gradient where the module holds both, as custom calls");
  command->add_option("--report", options->report, "Where a JSON report of all candidates goes");
  command->add_flag("--json", options->json, "Print the report as one JSON object");
  command->callback([options, &outcome] { outcome = run_fuse(*options); });
}

}  // namespace flashlift::cli
