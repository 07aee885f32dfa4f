// flashlift tune: measures candidates for problems and stores the fastest.
#include "flashlift/tune.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/completion.h"
#include "cli/output.h"
#include "cli/problem_options.h"
#include "cli/progress.h"
#include "support/tuning_policies.h"
#include "tuning/tuned_json.h"

namespace flashlift::cli {
namespace {

constexpr size_t kShown = 8;

struct Options {
  std::vector<std::string> problems;
  std::string device = "cpu";
  std::string layout = "bhsd";
  std::string policy;
  bool backward = false;
  bool all = false;
  bool json = false;
  double seconds = 1;
};

std::string bar(double done, int left, size_t problem, size_t problems) {
  constexpr int kWidth = 30;
  const int full = static_cast<int>(done * kWidth);
  return fmt::format("[{:#<{}}{:.<{}}] {} candidates  problem {} of {}", "", full, "", kWidth - full, left, problem,
                     problems);
}

std::vector<std::string> policy_words() {
  std::vector<std::string> words;
  for (const auto& [word, policy] : kTuningPolicies) {
    words.emplace_back(word);
  }
  return words;
}

// The speed relative to the heuristics.
std::string gain(double heuristics_ms, double ms) { return fmt::format("{:.2f}", ms > 0 ? heuristics_ms / ms : 1.0); }

void print_candidates(const std::string& problem, const Tuned& tuned, bool all) {
  fmt::print("{}\n", problem);
  const auto size = [](int64_t number) { return number == 0 ? std::string("-") : fmt::format("{}", number); };
  Table table({"implementation", "q tile", "kv tile", "splits", "threads", "ms", "speed", "calls"});
  size_t shown = 0;
  for (const TuneCandidate& one : tuned.candidates) {
    const bool is_heuristics = one.tuning == Tuning{};
    if (!one.failure.empty() || (!all && shown >= kShown && !is_heuristics)) {
      continue;
    }
    ++shown;
    table.add({is_heuristics ? "heuristics" : one.tuning.implementation, size(one.tuning.q_tile),
               size(one.tuning.kv_tile), size(one.tuning.splits), size(one.tuning.threads),
               fmt::format("{:.4g}", one.ms), gain(tuned.heuristics_ms, one.ms), fmt::format("{}", one.calls)});
  }
  fmt::print("{}", table.text());
  if (shown < tuned.candidates.size()) {
    fmt::print("and {} slower ones (--all shows them)\n", tuned.candidates.size() - shown);
  }
  fmt::print("\n");
}

Outcome run_tune(const Options& options) {
  std::vector<Problem> problems;
  for (const std::string& text : options.problems) {
    FLASHLIFT_ASSIGN_OR_RETURN(problems.emplace_back(), parse_problem(text));
  }
  Json results = Json::array();
  Table table({"problem", "best", "ms", "heuristics", "speed"});
  bool stored = false;
  for (size_t i = 0; i < problems.size(); ++i) {
    std::optional<StatusLine> line(std::in_place);
    const TuneOptions tune_options{.device = options.device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu,
                                   .backward = options.backward,
                                   .heads_inside = options.layout == "bshd",
                                   .seconds = options.seconds,
                                   .policy = tuning_policy_of(options.policy).value_or(TuningPolicy::kFromEnvironment),
                                   .on_progress = [&](double done, int left) {
                                     if (line->is_due()) {
                                       line->show(bar(done, left, i + 1, problems.size()));
                                     }
                                     return true;
                                   }};
    FLASHLIFT_ASSIGN_OR_RETURN(const Tuned tuned, tune(problems[i], tune_options));
    line.reset();
    stored = stored || tuned.stored;
    results.push_back(Json::parse(tuning::to_json(options.problems[i], options.backward, tuned)));
    if (!options.json && !tuned.candidates.empty()) {
      print_candidates(options.problems[i], tuned, options.all);
    }
    table.add({options.problems[i], to_string(tuned.best) + (tuned.from_database ? " (from the database)" : ""),
               fmt::format("{:.4g}", tuned.ms), fmt::format("{:.4g}", tuned.heuristics_ms),
               gain(tuned.heuristics_ms, tuned.ms)});
  }
  if (options.json) {
    print_json({{"results", results}});
  } else {
    fmt::print("{}{}", table.text(), stored ? "Stored; `flashlift cache list` shows all that is.\n" : "");
  }
  return kSuccess;
}

}  // namespace

void add_tune(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("tune", "Measure the candidates for problems, and store the fastest");
  auto options = std::make_shared<Options>();
  command->add_option("PROBLEMS", options->problems, "The problems, in one line each; see below")->required();
  command->add_option("--device", options->device, "Where they run: cpu or cuda")
      ->check(one_of({"cpu", "cuda"}))
      ->option_text("TEXT [cpu]");
  command->add_option("--layout", options->layout, "Order of the dimensions of q, k, v and out in memory: bhsd or bshd")
      ->check(one_of({"bhsd", "bshd"}))
      ->option_text("TEXT [bhsd]");
  command->add_flag("--backward", options->backward, "Tune the backward pass, which is tuned separately");
  add_seconds(*command, options->seconds, "About how long to measure each");
  command
      ->add_option("--policy", options->policy,
                   "write: measure and store; read: measure only what is not stored, and store nothing; off: measure "
                   "only. By default FLASHLIFT_TUNING")
      ->check(one_of(policy_words()));
  command->add_flag("--all", options->all, "Show all candidates");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Candidates are the implementations that accept a problem; on a CPU also with other tiles, splits\n"
      "and threads. They are measured in turns. A stored result applies to this device, this version and\n"
      "the problem's own lengths, and every process uses it when it compiles.\n\n" +
      problem_footer());
  command->callback([options, &outcome] { outcome = run_tune(*options); });
}

}  // namespace flashlift::cli
