// The subcommands of `flashlift`, one file each.
#pragma once

#include <CLI/CLI.hpp>

#include "flashlift/result.h"

namespace flashlift::cli {

enum ExitCode : int {
  kSuccess = 0,
  kCheckFailed = 1,  // the command ran, and its check failed
  kBadInput = 2,     // a wrong call, wrong input, or something that this build does not support
};

// The result of a subcommand for main: its exit code, or the error that main prints.
using Outcome = Result<ExitCode>;

// Each function adds its subcommand to `app`. Parsing the command line then runs the subcommand and sets `outcome`.
void add_run(CLI::App& app, Outcome& outcome);
void add_bench(CLI::App& app, Outcome& outcome);
void add_explain(CLI::App& app, Outcome& outcome);
void add_draw(CLI::App& app, Outcome& outcome);
void add_fuse(CLI::App& app, Outcome& outcome);
void add_compile(CLI::App& app, Outcome& outcome);
void add_tune(CLI::App& app, Outcome& outcome);
void add_cache(CLI::App& app, Outcome& outcome);
void add_info(CLI::App& app, Outcome& outcome);

}  // namespace flashlift::cli
