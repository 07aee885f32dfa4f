// Reading and writing whole files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "flashlift/result.h"

namespace flashlift {

Result<std::string> read_file(const std::filesystem::path& path);
// Writes to a temporary file beside `path`, then renames it: readers see the old content or the new, never a part.
Status write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace flashlift
