#include "cuda/compile/nvrtc_version.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "cuda/compile/nvrtc.h"
#include "cuda/compile/nvrtc_files.h"
#include "support/environment.h"
#include "support/hash.h"

namespace flashlift::cuda {
namespace {

constexpr size_t kMostBytes = 8192;

std::string file_name(const std::filesystem::path& path) { return hash_hex(path.string()) + ".nvrtc"; }

// A line that identifies the file's contents: it changes if the file is replaced.
std::optional<std::string> identity(const std::filesystem::path& path) {
  struct stat status = {};
  if (!path.is_absolute() || stat(path.c_str(), &status) != 0) {
    return std::nullopt;
  }
  return fmt::format("flashlift-nvrtc-1 {} {} {} {}.{:09} {}\n", status.st_dev, status.st_ino, status.st_size,
                     status.st_mtim.tv_sec, status.st_mtim.tv_nsec, path.string());
}

// The file that Nvrtc::get() tries first. Nothing if the loader searches for one.
std::optional<std::filesystem::path> first_candidate() {
  if (const auto path = environment_value(EnvironmentVariable::kNvrtc)) {
    return std::filesystem::path(*path);
  }
  const std::vector<std::filesystem::path> candidates = nvrtc_candidates(nvrtc_places());
  return candidates.empty() ? std::nullopt : std::optional(candidates.front());
}

}  // namespace

void remember_nvrtc_version(const PrivateFolder& folder, const std::filesystem::path& path,
                            const std::string& version) {
  if (const std::optional<std::string> file = identity(path)) {
    [[maybe_unused]] const std::error_code ignored = folder.write(file_name(path), *file + version + '\n');
  }
}

std::optional<std::string> remembered_nvrtc_version(const PrivateFolder& folder, const std::filesystem::path& path) {
  const std::optional<std::string> file = identity(path);
  const std::optional<std::string> content =
      file ? folder.read(file_name(path), kMostBytes) : std::optional<std::string>();
  if (!content || !content->starts_with(*file) || content->size() == file->size() || content->back() != '\n') {
    return std::nullopt;
  }
  return content->substr(file->size(), content->size() - file->size() - 1);
}

Result<std::string> nvrtc_version(const PrivateFolder* folder) {
  const std::optional<std::filesystem::path> first = folder == nullptr ? std::nullopt : first_candidate();
  if (first) {
    if (std::optional<std::string> version = remembered_nvrtc_version(*folder, *first)) {
      return *std::move(version);
    }
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::get());
  std::error_code error;
  if (first && std::filesystem::equivalent(*first, nvrtc->path(), error)) {  // and not a later candidate
    remember_nvrtc_version(*folder, *first, nvrtc->version());
  }
  return nvrtc->version();
}

}  // namespace flashlift::cuda
