// Which version of NVRTC this process would compile with, for machine code from disk alone: loading the compiler takes
// longer than everything else that such a call does.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "support/private_folder.h"

namespace flashlift::cuda {

// Keeps the version of the library at `path`, an absolute path, until the file changes.
void remember_nvrtc_version(const PrivateFolder& folder, const std::filesystem::path& path, const std::string& version);
// Nothing where none is known of the file as it is now.
std::optional<std::string> remembered_nvrtc_version(const PrivateFolder& folder, const std::filesystem::path& path);

// Nvrtc::get()'s version, without loading it where the folder remembers that of the file that would be loaded. Errors:
// those of Nvrtc::get(). `folder` may be null.
Result<std::string> nvrtc_version(const PrivateFolder* folder);

}  // namespace flashlift::cuda
