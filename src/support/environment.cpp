#include "support/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "support/error.h"
#include "support/private_folder.h"
#include "support/tuning_policies.h"

namespace flashlift {
namespace {

constexpr EnvironmentEntry kTable[] = {
    {EnvironmentVariable::kLog, "FLASHLIFT_LOG",
     "log level on standard error: debug, info, warning, error, off (default: off)"},
    {EnvironmentVariable::kIsa, "FLASHLIFT_ISA",
     "CPU implementation to begin with, in the order amx, avx512_bf16, avx512, avx2, portable"},
    {EnvironmentVariable::kThreads, "FLASHLIFT_THREADS", "threads of the CPU backend's own pool (default: all cores)"},
    {EnvironmentVariable::kCacheDir, "FLASHLIFT_CACHE_DIR",
     "absolute path of the caches' folder, nobody else's (default: ~/.cache/flashlift)"},
    {EnvironmentVariable::kNvrtc, "FLASHLIFT_NVRTC",
     "absolute path of libnvrtc.so (default: where pip, conda, PyTorch or the system put it)"},
    {EnvironmentVariable::kPjrtPlugin, "FLASHLIFT_PJRT_PLUGIN",
     "absolute path of the PJRT plugin that libflashlift_pjrt wraps (default: one beside it or in its site-packages)"},
    {EnvironmentVariable::kPjrtReport, "FLASHLIFT_PJRT_REPORT",
     "file to which libflashlift_pjrt appends a line of JSON for each module that it is given (default: none)"},
    {EnvironmentVariable::kTuning, "FLASHLIFT_TUNING",
     "what is done with the database of what was tuned: off, read or write (default: write)"},
};

}  // namespace

std::span<const EnvironmentEntry> environment_table() { return kTable; }

std::optional<std::string_view> environment_value(EnvironmentVariable variable) {
  // Ignored in a program that has more rights than its caller (set-user-ID), because files named here are loaded and
  // executed.
  const char* value = secure_getenv(kTable[static_cast<size_t>(variable)].name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return value;
}

std::optional<int> wanted_thread_count() {
  const auto text = environment_value(EnvironmentVariable::kThreads);
  int threads = 0;
  if (!text) {
    return std::nullopt;
  }
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), threads);
  const bool is_number = error == std::errc() && end == text->data() + text->size();
  return is_number && threads >= 1 && threads <= kMostThreads ? std::optional(threads) : std::nullopt;
}

Status check_environment() {
  const auto threads = environment_value(EnvironmentVariable::kThreads);
  if (threads && !wanted_thread_count()) {
    return invalid_argument("FLASHLIFT_THREADS is '{}', expected a number from 1 to {}", *threads, kMostThreads);
  }
  static constexpr std::string_view kLevels[] = {"debug", "info", "warning", "error", "off"};
  const auto level = environment_value(EnvironmentVariable::kLog);
  if (level && std::ranges::find(kLevels, *level) == std::end(kLevels)) {
    return invalid_argument("FLASHLIFT_LOG is '{}', expected debug, info, warning, error or off", *level);
  }
  const auto policy = environment_value(EnvironmentVariable::kTuning);
  if (policy && !tuning_policy_of(*policy)) {
    return invalid_argument("FLASHLIFT_TUNING is '{}', expected off, read or write", *policy);
  }
  if (environment_value(EnvironmentVariable::kCacheDir)) {
    FLASHLIFT_RETURN_IF_ERROR(cache_folder());
  }
  return {};
}

}  // namespace flashlift
