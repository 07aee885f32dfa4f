#include "cuda/compile/cubin_cache.h"

#include <chrono>
#include <cstdlib>

#include "cuda/compile/nvrtc.h"
#include "support/environment.h"
#include "support/files.h"
#include "support/hash.h"
#include "support/log.h"

namespace flashlift::cuda {
namespace {

// Raised when the layout of an entry or of ForwardParams changes its meaning.
constexpr const char* kFormat = "flashlift-cubin-1";

// A header line that a foreign or torn file does not have: format, key, hash of what follows.
std::string header(const std::string& key, std::string_view cubin) {
  return std::string(kFormat) + " " + key + " " + hash_hex(cubin) + "\n";
}

}  // namespace

std::optional<std::string> CubinCache::read(const std::string& key) const {
  Result<std::string> content = read_file(path_of(key));
  if (!content.ok()) {
    return std::nullopt;
  }
  const size_t line = content->find('\n');
  if (line == std::string::npos) {
    return std::nullopt;
  }
  std::string cubin = content->substr(line + 1);
  if (content->substr(0, line + 1) != header(key, cubin)) {
    log(LogLevel::kWarning, "{} is not a whole cache entry; compiling again", path_of(key).string());
    return std::nullopt;
  }
  return cubin;
}

void CubinCache::write(const std::string& key, const std::string& cubin) const {
  std::error_code failed;
  std::filesystem::create_directories(folder_, failed);
  const Status status = write_file_atomically(path_of(key), header(key, cubin) + cubin);
  if (!status.ok()) {
    log(LogLevel::kWarning, "the kernel cache was not written: {}", status.error().message);
  }
}

std::filesystem::path cache_folder() {
  if (const auto folder = environment_value(EnvironmentVariable::kCacheDir)) {
    return *folder;
  }
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return std::filesystem::path(cache) / "flashlift";
  }
  const char* home = std::getenv("HOME");
  return (home != nullptr ? std::filesystem::path(home) / ".cache" : std::filesystem::temp_directory_path()) /
         "flashlift";
}

std::string cubin_key(const KernelSource& source, const std::string& compiler_version) {
  return hash_hex(std::string(kFormat) + "\nnvrtc " + compiler_version + "\n" + source.fingerprint());
}

Result<std::shared_ptr<const std::string>> cached_cubin(const KernelSource& source) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::get());
  const CubinCache cache(cache_folder());
  const std::string key = cubin_key(source, nvrtc->version());
  if (std::optional<std::string> cubin = cache.read(key)) {
    log(LogLevel::kInfo, "{}: from {}", source.name, cache.path_of(key).string());
    return std::make_shared<const std::string>(std::move(*cubin));
  }
  const auto start = std::chrono::steady_clock::now();
  FLASHLIFT_ASSIGN_OR_RETURN(CompiledKernel kernel, nvrtc->compile(source));
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  log(LogLevel::kInfo, "{}: compiled for sm_{} in {} ms", source.name, source.architecture, milliseconds.count());
  log(LogLevel::kDebug, "{}", kernel.log);
  cache.write(key, kernel.cubin);
  return std::make_shared<const std::string>(std::move(kernel.cubin));
}

}  // namespace flashlift::cuda
