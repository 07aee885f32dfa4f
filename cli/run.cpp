// flashlift run: runs and times one problem on random tensors. On request, compares the result with the fp64 oracle.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/measure.h"
#include "cli/output.h"
#include "cli/problem_options.h"
#include "cli/progress.h"
#include "problem/check.h"

namespace flashlift::cli {
namespace {

struct Options {
  std::string problem;
  DataOptions data;
  DeviceOptions device;
  double seconds = 1;
  bool check = false;
  bool json = false;
};

using Check = std::optional<problem::Judgement>;

std::array<std::pair<const char*, problem::Measure>, 3> measures(const problem::Judgement& judgement) {
  return {{{"mean", judgement.mean}, {"largest", judgement.largest}, {"row", judgement.row}}};
}

void print_for_people(const Options& options, const Attention& attention, const Measurement& m, const Check& check) {
  fmt::print("problem         {}\n", options.problem);
  fmt::print("implementation  {} on {}, compiled in {:.1f} ms\n", attention.implementation(), options.device.device,
             m.compile_ms);
  fmt::print("time            {:.3f} ms, the median of {} calls\n", m.ms, m.calls);
  fmt::print("speed           {:.1f} GFLOP/s\n", m.gflops);
  fmt::print("workspace       {}\n", format_bytes(m.workspace_bytes));
  if (check) {
    fmt::print("check           {}: errors of {}\n", check->ok ? "ok" : "FAILED", check->tensor);
    for (const auto& [name, measure] : measures(*check)) {
      fmt::print("  {:<14}{:.2e}, at most {:.2e} allowed; unfused maths {:.2e}\n", name, measure.error, measure.limit,
                 measure.eager);
    }
    if (!check->ok) {
      fmt::print("                {}\n", check->reason);
    }
  }
}

void print_as_json(const Options& options, const Attention& attention, const Measurement& m, const Check& check) {
  Json object = to_json(attention, options.device.device, m);
  object["seed"] = options.data.seed;
  if (check) {
    object["tensor"] = check->tensor;
    for (const auto& [name, measure] : measures(*check)) {
      object["errors"][name] = {{"error", measure.error}, {"eager", measure.eager}, {"limit", measure.limit}};
    }
    object["ok"] = check->ok;
    if (!check->ok) {
      object["reason"] = check->reason;
    }
  }
  print_json(object);
}

// The oracle and eager attention are slow loops over the rows, one after the other.
Result<problem::Judgement> check_result(const Problem& problem, const Inputs& inputs) {
  Progress progress("checking", "rows", 2 * problem.batch * problem.q_heads * problem.q_len);
  const problem::RowDone row_done = [&] { progress.step(); };
  return inputs.backward() != nullptr ? problem::check_gradients(problem, *inputs.backward(), row_done)
                                      : problem::check_output(problem, inputs.arguments(), row_done);
}

Outcome run(const Options& options) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Problem problem, parse_problem(options.problem));
  FLASHLIFT_ASSIGN_OR_RETURN(const Inputs inputs, options.data.draw(problem));
  const CompileOptions compile_options = options.device.compile_options();
  FLASHLIFT_ASSIGN_OR_RETURN(const CompiledAttention compiled, compile(problem, compile_options));
  FLASHLIFT_ASSIGN_OR_RETURN(const auto target, Target::create(compile_options, inputs));
  FLASHLIFT_ASSIGN_OR_RETURN(const Measurement measurement, measure(compiled, inputs, *target, options.seconds));
  Check check;
  if (options.check) {
    FLASHLIFT_RETURN_IF_ERROR(target->fetch());
    FLASHLIFT_ASSIGN_OR_RETURN(check, check_result(problem, inputs));
  }
  if (options.json) {
    print_as_json(options, compiled.attention, measurement, check);
  } else {
    print_for_people(options, compiled.attention, measurement, check);
  }
  return check && !check->ok ? kCheckFailed : kSuccess;
}

}  // namespace

void add_run(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("run", "Run a problem on random tensors, time it, check it");
  auto options = std::make_shared<Options>();
  command->add_option("PROBLEM", options->problem, kProblemHelp)->required();
  command->add_flag("--check", options->check, "Compare with the fp64 oracle; exit code 1 if the error is too large");
  options->device.add_to(*command);
  options->data.add_to(*command);
  options->data.add_backward_to(*command);
  add_seconds(*command, options->seconds, "How long to time it");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(problem_footer());
  command->callback([options, &outcome] { outcome = run(*options); });
}

}  // namespace flashlift::cli
