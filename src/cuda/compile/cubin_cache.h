// The cache of machine code on disk, and how it is filled.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cuda/emit/kernel_source.h"
#include "support/private_folder.h"

namespace flashlift::cuda {

// A folder that this user owns, with one file per entry. A user who can write to it can run code as this user, so that
// it is not used if others can write to it. A missing, truncated, corrupt or foreign file is a miss, never an error.
class CubinCache {
 public:
  static constexpr int64_t kMostBytes = int64_t{256} << 20;  // some thousand kernels

  explicit CubinCache(PrivateFolder folder, int64_t most_bytes = kMostBytes)
      : folder_(std::move(folder)), most_bytes_(most_bytes) {}

  std::optional<std::string> read(const std::string& key) const;
  // Then removes the least recently used entries until all entries fit, and the incomplete files of writers that ended
  // early.
  std::error_code write(const std::string& key, const std::string& cubin) const;
  static std::string file_name(const std::string& key) { return key + ".cubin"; }
  const PrivateFolder& folder() const { return folder_; }

 private:
  void trim() const;

  PrivateFolder folder_;
  int64_t most_bytes_;
};

// A hash of everything that the code depends on: format version, source, options, target, compiler.
std::string cubin_key(const KernelSource& source, const std::string& compiler_version);

// A file in the folder of machine code that came with the package: the version of the compiler that made it.
inline constexpr const char* kPackagedVersion = "nvrtc-version";

// From such a folder, whose other files are a CubinCache's. Whatever NVRTC is here: none is needed.
std::optional<std::string> packaged_cubin(const std::filesystem::path& folder, const KernelSource& source);

// From what came with the package, or from the disk cache, without loading NVRTC if its version is known
// (nvrtc_version()), or compiled and put there. Where no folder can be trusted it is compiled, which is logged once.
// Errors: those of Nvrtc.
Result<std::shared_ptr<const std::string>> cached_cubin(const KernelSource& source);

// How a kernel got into the disk cache.
struct StoredCubin {
  bool was_there = false;
  double seconds = 0;  // the time to find or compile it
};
// The same for the sake of the disk cache alone. Errors: those of Nvrtc; no folder can be trusted, or it takes no file.
Result<StoredCubin> store_cubin(const KernelSource& source);

}  // namespace flashlift::cuda
