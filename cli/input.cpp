#include "cli/input.h"

#include "support/files.h"

namespace flashlift::cli {

Result<std::string> read_input(const std::string& path) { return read_file(path == "-" ? "/dev/stdin" : path); }

std::string input_name(const std::string& path) { return path == "-" ? "<stdin>" : path; }

}  // namespace flashlift::cli
