// flashlift completion: prints what makes a shell complete subcommands and options.
#pragma once

#include "cli/command.h"

namespace flashlift::cli {

void add_completion(CLI::App& app, Outcome& outcome);

}  // namespace flashlift::cli
