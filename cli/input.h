// What a command reads.
#pragma once

#include <string>

#include "flashlift/result.h"

namespace flashlift::cli {

// All of a file; of `-` all of standard input.
Result<std::string> read_input(const std::string& path);

// The input's name in messages about its content.
std::string input_name(const std::string& path);

}  // namespace flashlift::cli
