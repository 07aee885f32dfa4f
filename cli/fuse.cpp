// flashlift fuse: fuses the attention in a StableHLO module.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <vector>

#include "cli/command.h"
#include "cli/completion.h"
#include "cli/fuse_report.h"
#include "cli/input.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "support/error.h"

namespace flashlift::cli {
namespace {

struct Options {
  std::string module;
  std::string output;
  std::string as = "custom_call";
  std::string report;
  std::string emit;
  bool gradients = false;
  bool json = false;
};

struct Outputs {
  OutputFile module;
  std::optional<OutputFile> report;

  bool use_standard_output() const { return module.is_standard_output() || (report && report->is_standard_output()); }
};

// Checked before the module is read, so that a wrong name costs no work.
Result<Outputs> find_outputs(const Options& options) {
  FLASHLIFT_ASSIGN_OR_RETURN(OutputFile module, OutputFile::find("-o", options.output));
  Outputs outputs{std::move(module), std::nullopt};
  if (!options.report.empty()) {
    FLASHLIFT_ASSIGN_OR_RETURN(outputs.report, OutputFile::find("--report", options.report));
    FLASHLIFT_RETURN_IF_ERROR(check_distinct(outputs.module, *outputs.report));
    if (outputs.report->is_same_as(options.module)) {
      return invalid_argument("--report {} names the module itself; give the report a file of its own", options.report);
    }
  }
  if (options.json && outputs.use_standard_output()) {
    return invalid_argument("--json prints the report on standard output, where {} goes; leave out one",
                            outputs.module.is_standard_output() ? "the module" : "--report");
  }
  return outputs;
}

Outcome run_fuse(const Options& options) {
  if (options.gradients && options.as == "composite") {
    return invalid_argument("--gradients and --as composite: gradients are fused as custom calls only; leave out one");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const Outputs outputs, find_outputs(options));
  std::optional<Elapsed> elapsed(std::in_place, "fusing " + input_name(options.module));
  FLASHLIFT_ASSIGN_OR_RETURN(std::string text, read_input(options.module));
  const auto as = options.as == "composite" ? stablehlo::FuseAs::kComposite : stablehlo::FuseAs::kCustomCall;
  FLASHLIFT_ASSIGN_OR_RETURN(
      const stablehlo::FuseResult fused,
      stablehlo::fuse_and_free(
          std::move(text),
          {.as = as, .name = input_name(options.module), .gradients = options.gradients, .emit = options.emit}));
  elapsed.reset();
  const Json candidates = Json::parse(stablehlo::report_json(fused));
  Json report = {{"module", options.module},
                 {"output", options.output},
                 {"as", options.as},
                 {"fused", fused.fused_count()},
                 {"candidates", candidates}};
  const std::string report_text = report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  std::vector<Output> written = {{outputs.module, fused.module}};
  if (outputs.report) {
    written.push_back({*outputs.report, report_text});
  }
  FLASHLIFT_RETURN_IF_ERROR(write_outputs(written));
  if (options.json) {
    print_json(report);
  } else {
    print_candidates(fused, outputs.use_standard_output() ? stderr : stdout);
  }
  return kSuccess;
}

}  // namespace

void add_fuse(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("fuse", "Replace the attention in a StableHLO module by fused calls");
  auto options = std::make_shared<Options>();
  command
      ->add_option(
          "MODULE", options->module,
          "File name of the module: StableHLO or generic MLIR text, MLIR bytecode, or VHLO (a portable artifact); - is "
          "standard input")
      ->required();
  command->add_option("-o,--output", options->output, "Where the fused module goes; - is standard output")->required();
  command
      ->add_option("--as", options->as,
                   "custom_call: runs if Flashlift's handler is registered; composite: runs anywhere, and keeps the "
                   "original as its decomposition")
      ->check(one_of({"custom_call", "composite"}))
      ->option_text("TEXT [custom_call]");
  command->add_flag("--gradients", options->gradients,
                    "Fuse attention with its gradient if the module contains both, as custom calls");
  command
      ->add_option(
          "--emit", options->emit,
          "The form of the fused module: text, bytecode (MLIR's, of StableHLO), vhlo=1.9.0 (a portable "
          "artifact of that version) or vhlo (of the oldest version that can represent it); by default the form "
          "of the file")
      ->option_text("FORM");
  command->add_option("--report", options->report, "Where a JSON report of all candidates goes; - is standard output");
  command->add_flag("--json", options->json, "Print the report as one JSON object");
  command->callback([options, &outcome] { outcome = run_fuse(*options); });
}

}  // namespace flashlift::cli
