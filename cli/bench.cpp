// flashlift bench: prints a table of problems and their speeds.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <vector>

#include "cli/bar_picture.h"
#include "cli/command.h"
#include "cli/measure.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/problem_options.h"
#include "cli/progress.h"
#include "cli/svg.h"
#include "support/error.h"

namespace flashlift::cli {
namespace {

struct Options {
  std::vector<std::string> problems;
  DataOptions data;
  DeviceOptions device;
  double seconds = 1;
  std::string plot;
  bool json = false;
};

// Checked before any measurement, so that a wrong name does not cost minutes.
Result<std::optional<OutputFile>> find_plot(const Options& options) {
  if (options.plot.empty()) {
    return std::optional<OutputFile>();
  }
  FLASHLIFT_RETURN_IF_ERROR(check_picture_name("--plot", options.plot));
  FLASHLIFT_ASSIGN_OR_RETURN(OutputFile file, OutputFile::find("--plot", options.plot));
  if (file.is_standard_output() && options.json) {
    return invalid_argument("--json prints the figures on standard output, where --plot - goes; leave out one");
  }
  return std::optional<OutputFile>(std::move(file));
}

// Parses all problems before any measurement, so that an error does not come after minutes.
Result<std::vector<Problem>> parse_all(const std::vector<std::string>& texts) {
  std::vector<Problem> problems;
  for (const std::string& text : texts) {
    FLASHLIFT_ASSIGN_OR_RETURN(Problem problem, parse_problem(text));
    problems.push_back(std::move(problem));
  }
  return problems;
}

Outcome run_bench(const Options& options) {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<Problem> problems, parse_all(options.problems));
  FLASHLIFT_ASSIGN_OR_RETURN(const std::optional<OutputFile> plot, find_plot(options));
  const CompileOptions compile_options = options.device.compile_options();
  Json results = Json::array();
  std::vector<Bar> bars;
  Table table({"problem", "implementation", "ms", "GFLOP/s", "workspace"});
  std::optional<Progress> progress(std::in_place, "timing", "problems", static_cast<int64_t>(problems.size()));
  for (size_t i = 0; i < problems.size(); ++i) {
    FLASHLIFT_ASSIGN_OR_RETURN(const Inputs inputs, options.data.draw(problems[i]));
    FLASHLIFT_ASSIGN_OR_RETURN(const CompiledAttention compiled, compile(problems[i], compile_options));
    FLASHLIFT_ASSIGN_OR_RETURN(const auto target, Target::create(compile_options, inputs));
    FLASHLIFT_ASSIGN_OR_RETURN(const Measurement m, measure(compiled, inputs, *target, options.seconds));
    results.push_back(to_json(compiled.attention, options.device.device, m));
    table.add({options.problems[i], compiled.attention.implementation(), fmt::format("{:.3f}", m.ms),
               fmt::format("{:.1f}", m.gflops), format_bytes(m.workspace_bytes)});
    bars.push_back({options.problems[i], m.gflops,
                    fmt::format("{:.1f} GFLOP/s, {:.3f} ms, {}", m.gflops, m.ms, compiled.attention.implementation())});
    progress->step();
  }
  progress.reset();
  if (plot) {
    const std::string svg =
        draw_bars(fmt::format("{} on {}, GFLOP/s", options.data.backward ? "Backward pass" : "Forward pass",
                              options.device.device),
                  bars);
    const Output written[] = {{*plot, svg}};
    FLASHLIFT_RETURN_IF_ERROR(write_outputs(written));
  }
  if (options.json) {
    print_json({{"results", results}});
  } else {
    fmt::print(plot && plot->is_standard_output() ? stderr : stdout, "{}", table.text());
  }
  return kSuccess;
}

}  // namespace

void add_bench(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("bench", "Time several problems on random tensors");
  auto options = std::make_shared<Options>();
  command->add_option("PROBLEMS", options->problems, "The problems, in one line each; see below")->required();
  options->device.add_to(*command);
  options->data.add_to(*command);
  options->data.add_backward_to(*command);
  add_seconds(*command, options->seconds, "How long to time each");
  command->add_option("--plot", options->plot, "Draw the speeds as bars, an SVG picture; - is standard output")
      ->option_text("FILE.svg");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(problem_footer());
  command->callback([options, &outcome] { outcome = run_bench(*options); });
}

}  // namespace flashlift::cli
