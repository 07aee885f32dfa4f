// Arguments that all subcommands with a problem share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "flashlift/attention.h"
#include "tuning/inputs.h"

namespace flashlift::cli {

using tuning::Inputs;

struct DataOptions {
  uint64_t seed = 1;
  std::string layout = "bhsd";
  bool backward = false;  // for run and bench

  void add_to(CLI::App& command);
  void add_backward_to(CLI::App& command);
  Result<Inputs> draw(const Problem& problem) const;
};

struct DeviceOptions {
  std::string device = "cpu";
  std::string implementation;

  void add_to(CLI::App& command);
  CompileOptions compile_options() const;
};

// Adds an option for a number from 0 to 3600. CLI11's own ranges accept "nan", which is neither below nor above any
// number.
CLI::Option* add_seconds(CLI::App& command, double& seconds, const char* meaning);
// Adds an option for a whole number from 0 to 2^64 - 1. CLI11 would read a larger number as the largest one.
CLI::Option* add_seed(CLI::App& command, uint64_t& seed, const char* meaning);

// The description of PROBLEM for --help.
extern const char* const kProblemHelp;
// More about problems, for the end of --help.
std::string problem_footer();

}  // namespace flashlift::cli
