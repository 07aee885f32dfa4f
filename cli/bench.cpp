// flashlift bench: a table of problems and how fast each runs.
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "cli/command.h"
#include "cli/measure.h"
#include "cli/output.h"
#include "cli/problem_options.h"

namespace flashlift::cli {
namespace {

struct Options {
  std::vector<std::string> problems;
  DataOptions data;
  DeviceOptions device;
  double seconds = 1;
  bool json = false;
};

// A wrong problem is an error before anything is measured, not after minutes of measuring the others.
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
  const CompileOptions compile_options = options.device.compile_options();
  Json results = Json::array();
  Table table({"problem", "implementation", "ms", "GFLOP/s", "workspace"});
  for (size_t i = 0; i < problems.size(); ++i) {
    FLASHLIFT_ASSIGN_OR_RETURN(const Inputs inputs, options.data.draw(problems[i]));
    FLASHLIFT_ASSIGN_OR_RETURN(const CompiledAttention compiled, compile(problems[i], compile_options));
    FLASHLIFT_ASSIGN_OR_RETURN(const auto target, Target::create(compile_options, inputs));
    FLASHLIFT_ASSIGN_OR_RETURN(const Measurement m, measure(compiled, inputs, *target, options.seconds));
    results.push_back(to_json(compiled.attention, options.device.device, m));
    table.add({options.problems[i], compiled.attention.implementation(), fmt::format("{:.3f}", m.ms),
               fmt::format("{:.1f}", m.gflops), format_bytes(m.workspace_bytes)});
  }
  if (options.json) {
    print_json({{"results", results}});
  } else {
    fmt::print("{}", table.text());
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
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(problem_footer());
  command->callback([options, &outcome] { outcome = run_bench(*options); });
}

}  // namespace flashlift::cli
