// flashlift completion: prints a script with which a shell completes subcommands and options.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace flashlift::cli {

// The long names of a command's options, with their dashes.
std::vector<std::string> options_of(const CLI::App& command);

// Accepts these words only. Shells complete them.
CLI::Validator one_of(std::vector<std::string> words);

void add_completion(CLI::App& app, Outcome& outcome);

}  // namespace flashlift::cli
