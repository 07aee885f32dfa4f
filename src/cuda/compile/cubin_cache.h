// Machine code kept on disk between processes, and how it gets there.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cuda/emit/kernel_source.h"

namespace flashlift::cuda {

// A folder with one file an entry. A missing, truncated, corrupt or foreign file is a miss, never an error.
class CubinCache {
 public:
  explicit CubinCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::optional<std::string> read(const std::string& key) const;
  // Failing to write costs the next process a compile, no more: it is logged.
  void write(const std::string& key, const std::string& cubin) const;
  std::filesystem::path path_of(const std::string& key) const { return folder_ / (key + ".cubin"); }

 private:
  std::filesystem::path folder_;
};

// FLASHLIFT_CACHE_DIR, or flashlift/ in the user's cache folder.
std::filesystem::path cache_folder();

// What the code depends on: format version, source, options, target, compiler.
std::string cubin_key(const KernelSource& source, const std::string& compiler_version);

// From the disk cache, or compiled and put there. Errors: those of Nvrtc.
Result<std::shared_ptr<const std::string>> cached_cubin(const KernelSource& source);

}  // namespace flashlift::cuda
