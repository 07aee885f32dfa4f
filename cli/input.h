// Reads the input of commands.
#pragma once

#include <string>

#include "flashlift/result.h"

namespace flashlift::cli {

// Reads a whole file, or standard input for `-`.
Result<std::string> read_input(const std::string& path);

// The input's name in messages about its content.
std::string input_name(const std::string& path);

}  // namespace flashlift::cli
