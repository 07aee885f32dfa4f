// The version of NVRTC with which this process would compile. A call that only needs cached machine code uses it
// without loading the compiler, which takes longer than the rest of such a call.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "support/private_folder.h"

namespace flashlift::cuda {

// Stores the version of the library at `path`, an absolute path, until the file changes.
void remember_nvrtc_version(const PrivateFolder& folder, const std::filesystem::path& path, const std::string& version);
// Nothing if no version is stored for the file in its current state.
std::optional<std::string> remembered_nvrtc_version(const PrivateFolder& folder, const std::filesystem::path& path);

// The version of Nvrtc::get(), without loading it if `folder` has the version of the file that would be loaded. Errors:
// those of Nvrtc::get(). `folder` may be null.
Result<std::string> nvrtc_version(const PrivateFolder* folder);

}  // namespace flashlift::cuda
