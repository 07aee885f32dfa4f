#include "support/environment.h"

#include <cstdlib>

namespace flashlift {
namespace {

constexpr EnvironmentEntry kTable[] = {
    {EnvironmentVariable::kLog, "FLASHLIFT_LOG",
     "log level on standard error: debug, info, warning, error (default: off)"},
    {EnvironmentVariable::kIsa, "FLASHLIFT_ISA",
     "CPU implementation to begin with, in the order amx, avx512_bf16, avx512, avx2"},
    {EnvironmentVariable::kThreads, "FLASHLIFT_THREADS", "threads of the CPU backend's own pool (default: all cores)"},
    {EnvironmentVariable::kCacheDir, "FLASHLIFT_CACHE_DIR",
     "folder of the kernel cache, nobody else's (default: ~/.cache/flashlift)"},
    {EnvironmentVariable::kNvrtc, "FLASHLIFT_NVRTC",
     "absolute path of libnvrtc.so (default: the loader's search path)"},
};

}  // namespace

std::span<const EnvironmentEntry> environment_table() { return kTable; }

std::optional<std::string_view> environment_value(EnvironmentVariable variable) {
  // Nothing in a program that runs with more rights than its caller (set-user-ID): files named here are loaded and run.
  const char* value = secure_getenv(kTable[static_cast<size_t>(variable)].name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return value;
}

}  // namespace flashlift
