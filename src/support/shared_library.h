// Loads shared libraries from files that others installed.
#pragma once

#include <filesystem>

#include "flashlift/result.h"

namespace flashlift {

// Checks what the loader does not check: a file that is shorter than its segments, such as an incomplete download,
// which would crash it, and a pipe, on which it would wait. Succeeds for anything that the loader itself refuses, such
// as a file that is not a library.
Status verify_library_is_whole(const std::filesystem::path& path);

// dlopen() of a complete file, or of a name that the loader searches for, with RTLD_NOW and `mode`. The error gives the
// reason.
Result<void*> load_library(const std::filesystem::path& path, int mode);

}  // namespace flashlift
