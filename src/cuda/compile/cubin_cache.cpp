#include "cuda/compile/cubin_cache.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "cuda/compile/nvrtc.h"
#include "cuda/compile/nvrtc_version.h"
#include "support/environment.h"
#include "support/error.h"
#include "support/files.h"
#include "support/hash.h"
#include "support/lazy.h"
#include "support/log.h"

namespace flashlift::cuda {
namespace {

// Increased when the format of an entry or the meaning of ForwardParams changes.
constexpr const char* kFormat = "flashlift-cubin-1";

// The header line of an entry: format, key, and hash of the code. Other files, and damaged ones, do not have it.
std::string header(const std::string& key, std::string_view cubin) {
  return std::string(kFormat) + " " + key + " " + hash_hex(cubin) + "\n";
}

constexpr size_t kMostEntryBytes = size_t{64} << 20;

// The code of an entry. Nothing, with a warning, if the entry is incomplete.
std::optional<std::string> cubin_of_entry(const std::string& content, const std::string& key) {
  const size_t line = content.find('\n');
  std::string cubin = line == std::string::npos ? "" : content.substr(line + 1);
  if (cubin.empty() || content.substr(0, line + 1) != header(key, cubin)) {
    log(LogLevel::kWarning, "{} is not a whole cache entry; compiling again", CubinCache::file_name(key));
    return std::nullopt;
  }
  return cubin;
}

// A folder beside this library's file: whoever can write there can also replace the library.
std::filesystem::path packaged_folder() {
  Dl_info info = {};
  std::error_code error;
  const bool is_known = dladdr(reinterpret_cast<void*>(&packaged_folder), &info) != 0 && info.dli_fname != nullptr;
  const std::filesystem::path own = is_known ? std::filesystem::canonical(info.dli_fname, error) : "";
  return own.empty() ? own : own.parent_path() / "flashlift_kernels";
}

constexpr std::chrono::hours kOldestTemporary{1};  // writing takes milliseconds

bool is_entry(const std::string& name) { return name.ends_with(".cubin"); }

// Also temporary files of older versions, which named them after the process.
bool is_temporary(const std::string& name) {
  return name.starts_with(kTemporaryPrefix) || name.find(".cubin.tmp.") != std::string::npos;
}

Result<CubinCache> open_cache() {
  FLASHLIFT_ASSIGN_OR_RETURN(const std::filesystem::path path, cache_folder());
  FLASHLIFT_ASSIGN_OR_RETURN(PrivateFolder folder, PrivateFolder::open(path));
  return CubinCache(std::move(folder));
}

Result<std::string> compile_timed(const Nvrtc& nvrtc, const KernelSource& source) {
  const auto start = std::chrono::steady_clock::now();
  FLASHLIFT_ASSIGN_OR_RETURN(CompiledKernel kernel, nvrtc.compile(source));
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  log(LogLevel::kInfo, "{}: compiled for sm_{} in {} ms", source.name, source.architecture, milliseconds.count());
  log(LogLevel::kDebug, "{}", kernel.log);
  return std::move(kernel.cubin);
}

void log_once(const Error& error) {
  static constinit std::atomic<bool> logged{false};
  if (!logged.exchange(true)) {
    log(LogLevel::kWarning, "kernels are not kept on disk: {}", error.message);
  }
}

}  // namespace

std::optional<std::string> CubinCache::read(const std::string& key) const {
  const std::optional<std::string> content = folder_.read(file_name(key), kMostEntryBytes);
  return content ? cubin_of_entry(*content, key) : std::nullopt;
}

std::error_code CubinCache::write(const std::string& key, const std::string& cubin) const {
  const std::error_code failed = folder_.write(file_name(key), header(key, cubin) + cubin);
  trim();
  return failed;
}

void CubinCache::trim() const {
  std::vector<PrivateFolder::Entry> entries = folder_.entries();
  const auto now = std::chrono::system_clock::now();
  int64_t bytes = 0;
  for (const PrivateFolder::Entry& entry : entries) {
    if (is_temporary(entry.name) && now - entry.used > kOldestTemporary) {
      folder_.remove(entry.name);
    }
    bytes += is_entry(entry.name) ? entry.bytes : 0;
  }
  std::ranges::sort(entries, {}, &PrivateFolder::Entry::used);
  for (const PrivateFolder::Entry& entry : entries) {
    if (bytes <= most_bytes_) {
      return;
    }
    if (is_entry(entry.name)) {
      folder_.remove(entry.name);
      bytes -= entry.bytes;
    }
  }
}

std::string cubin_key(const KernelSource& source, const std::string& compiler_version) {
  return hash_hex(std::string(kFormat) + "\nnvrtc " + compiler_version + "\n" + source.fingerprint());
}

std::optional<std::string> packaged_cubin(const std::filesystem::path& folder, const KernelSource& source) {
  const Result<std::string> version = read_file(folder / kPackagedVersion);
  if (!version.ok()) {
    return std::nullopt;
  }
  const std::string key = cubin_key(source, *version);
  const Result<std::string> content = read_file(folder / CubinCache::file_name(key), kMostEntryBytes);
  return content.ok() ? cubin_of_entry(*content, key) : std::nullopt;
}

Result<std::shared_ptr<const std::string>> cached_cubin(const KernelSource& source) {
  static constinit Lazy<const std::filesystem::path> lazy;
  const std::filesystem::path& packaged = lazy.get(packaged_folder);
  if (std::optional<std::string> cubin = packaged_cubin(packaged, source)) {
    log(LogLevel::kInfo, "{}: from {}", source.name, packaged.string());
    return std::make_shared<const std::string>(std::move(*cubin));
  }
  const Result<CubinCache> cache = open_cache();
  if (!cache.ok()) {
    log_once(cache.error());
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const std::string version, nvrtc_version(cache.ok() ? &cache->folder() : nullptr));
  const std::string key = cubin_key(source, version);
  if (std::optional<std::string> cubin = cache.ok() ? cache->read(key) : std::nullopt) {
    log(LogLevel::kInfo, "{}: from {} in the cache", source.name, CubinCache::file_name(key));
    return std::make_shared<const std::string>(std::move(*cubin));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::get());
  FLASHLIFT_ASSIGN_OR_RETURN(std::string cubin, compile_timed(*nvrtc, source));
  if (cache.ok()) {
    if (const std::error_code failed = cache->write(cubin_key(source, nvrtc->version()), cubin)) {
      log(LogLevel::kWarning, "the kernel cache was not written: {}", failed.message());
    }
  }
  return std::make_shared<const std::string>(std::move(cubin));
}

Result<StoredCubin> store_cubin(const KernelSource& source) {
  const auto start = std::chrono::steady_clock::now();
  FLASHLIFT_ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::get());
  const Result<CubinCache> opened = open_cache();
  if (!opened.ok()) {
    return Error{opened.error().kind, "the kernel cache cannot be used: " + opened.error().message};
  }
  const CubinCache& cache = *opened;
  const std::string key = cubin_key(source, nvrtc->version());
  StoredCubin stored{.was_there = cache.read(key).has_value()};
  if (!stored.was_there) {
    FLASHLIFT_ASSIGN_OR_RETURN(const std::string cubin, compile_timed(*nvrtc, source));
    if (const std::error_code failed = cache.write(key, cubin)) {
      FLASHLIFT_ASSIGN_OR_RETURN(const std::filesystem::path folder, cache_folder());
      return not_found(
          "the kernel cache in {} was not written: {}; make room, or set FLASHLIFT_CACHE_DIR to another folder",
          folder.string(), failed.message());
    }
  }
  stored.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return stored;
}

}  // namespace flashlift::cuda
