// flashlift compile: compiles GPU kernels into the cache on disk before they are needed, on any machine.
#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <set>

#include "cli/command.h"
#include "cli/output.h"
#include "cli/problem_options.h"
#include "flashlift/precompile.h"
#include "support/error.h"

namespace flashlift::cli {
namespace {

struct Options {
  std::vector<std::string> problems;
  std::vector<std::string> architectures;
  PrecompileOptions precompile;
  bool json = false;
};

// Reads "90", "9.0" or "sm_90".
Result<int> read_architecture(const std::string& text) {
  std::string digits = text.starts_with("sm_") ? text.substr(3) : text;
  std::erase(digits, '.');
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 10 || number > 999) {
    return invalid_argument("--architecture is {}: expected a compute capability, such as 90, 9.0 or sm_90", text);
  }
  return number;
}

Result<std::vector<int>> find_architectures(const std::vector<std::string>& named) {
  if (named.empty()) {
    Result<std::vector<int>> here = architectures_here();
    if (!here.ok() || here->empty()) {
      return invalid_argument("no GPU was found here, so name architectures, such as --architecture 80,90 ({})",
                              here.ok() ? "the driver shows none" : here.error().message);
    }
    return here;
  }
  std::set<int> architectures;
  for (const std::string& text : named) {
    FLASHLIFT_ASSIGN_OR_RETURN(const int architecture, read_architecture(text));
    architectures.insert(architecture);
  }
  return std::vector<int>(architectures.begin(), architectures.end());
}

Json to_json(const std::vector<PrecompiledKernel>& kernels, const std::vector<std::string>& problems) {
  Json list = Json::array();
  for (const PrecompiledKernel& kernel : kernels) {
    list.push_back({{"problem", problems[kernel.problem]},
                    {"architecture", kernel.architecture},
                    {"implementation", kernel.implementation},
                    {"kernel", kernel.kernel},
                    {"cached", kernel.was_cached},
                    {"seconds", kernel.seconds}});
  }
  return {{"kernels", list}};
}

void print_table(const std::vector<PrecompiledKernel>& kernels, const std::vector<std::string>& problems) {
  for (size_t i = 0; i < problems.size(); ++i) {
    Table table({"architecture", "implementation", "kernel", "compiled in"});
    for (const PrecompiledKernel& kernel : kernels) {
      if (kernel.problem == i) {
        table.add({fmt::format("sm_{}", kernel.architecture), kernel.implementation, kernel.kernel,
                   kernel.was_cached ? "in the cache" : fmt::format("{:.2f} s", kernel.seconds)});
      }
    }
    fmt::print("{}{}\n{}", i > 0 ? "\n" : "", problems[i], table.text());
  }
}

Outcome run_compile(Options options) {
  std::vector<Problem> problems;
  for (const std::string& text : options.problems) {
    FLASHLIFT_ASSIGN_OR_RETURN(problems.emplace_back(), parse_problem(text));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(options.precompile.architectures, find_architectures(options.architectures));
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<PrecompiledKernel> kernels, precompile(problems, options.precompile));
  if (options.json) {
    print_json(to_json(kernels, options.problems));
  } else {
    print_table(kernels, options.problems);
  }
  return kSuccess;
}

}  // namespace

void add_compile(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("compile", "Compile a GPU's kernels into the cache on disk, without a GPU");
  auto options = std::make_shared<Options>();
  command->add_option("PROBLEM", options->problems, "One or more problems, each in one line; see below")->required();
  command
      ->add_option("--architecture", options->architectures,
                   "Compute capabilities, such as 80,90; by default those of this machine's GPUs")
      ->delimiter(',')
      ->option_text("N,...");
  command
      ->add_option("--q-len", options->precompile.q_lens, "Numbers of queries of the calls; by default the problem's")
      ->delimiter(',')
      ->option_text("N,...");
  command->add_flag("--backward", options->precompile.backward, "Compile the backward pass, too");
  command
      ->add_option("--gradients", options->precompile.gradients,
                   "Captured tensors whose gradients the backward pass computes")
      ->delimiter(',')
      ->option_text("NAME,...");
  command->add_option("--implementation", options->precompile.implementation,
                      "This implementation only; by default the first that accepts the problem");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "This needs NVRTC, but no GPU. Calls find the kernels on a machine with the cache's folder\n"
      "(FLASHLIFT_CACHE_DIR) and the same versions of Flashlift and NVRTC. Code for CPUs is not\n"
      "cached: compiling it takes milliseconds.\n\n" +
      problem_footer());
  command->callback([options, &outcome] { outcome = run_compile(*options); });
}

}  // namespace flashlift::cli
