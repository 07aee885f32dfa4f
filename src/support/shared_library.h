// Loading shared libraries from files that somebody else put there.
#pragma once

#include <filesystem>

#include "flashlift/result.h"

namespace flashlift {

// What the loader does not look at: a file that ends before its segments do, as a download that broke off, of which it
// dies, and a pipe, at which it waits. Success for whatever the loader itself refuses, such as no library at all.
Status verify_library_is_whole(const std::filesystem::path& path);

// dlopen() of a file that is whole, or of a name that the loader looks for, with RTLD_NOW and `mode`. The error says
// what is wrong with it.
Result<void*> load_library(const std::filesystem::path& path, int mode);

}  // namespace flashlift
