// The cache of machine code on disk.
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

// A file in the package's folder of machine code: the version of the compiler that made it.
inline constexpr const char* kPackagedVersion = "nvrtc-version";

// Reads code from such a folder, whose other files are in the format of CubinCache. It does not need NVRTC, whatever
// version is installed.
std::optional<std::string> packaged_cubin(const std::filesystem::path& folder, const KernelSource& source);

// Reads code from the package or from the disk cache, without loading NVRTC if its version is known (nvrtc_version()).
// Otherwise compiles it, and stores it in the disk cache. If no folder can be trusted, it is compiled each time, which
// is logged once. Errors: those of Nvrtc.
Result<std::shared_ptr<const std::string>> cached_cubin(const KernelSource& source);

// The result of store_cubin().
struct StoredCubin {
  bool was_there = false;
  double seconds = 0;  // the time to find or compile it
};
// Does the same for the disk cache alone. Fails like Nvrtc, and if no folder can be trusted or written.
Result<StoredCubin> store_cubin(const KernelSource& source);

}  // namespace flashlift::cuda
