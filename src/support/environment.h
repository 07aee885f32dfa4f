// Every environment variable that Flashlift reads, in one table (at most twelve).
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "flashlift/result.h"

namespace flashlift {

enum class EnvironmentVariable {
  kLog,
  kIsa,
  kThreads,
  kCacheDir,
  kNvrtc,
  kPjrtPlugin,
  kPjrtReport,
  kTuning,
};

struct EnvironmentEntry {
  EnvironmentVariable variable;
  const char* name;
  const char* meaning;
};

std::span<const EnvironmentEntry> environment_table();
// The variable's value, or nothing if it is unset or empty.
std::optional<std::string_view> environment_value(EnvironmentVariable variable);

inline constexpr int kMostThreads = 4096;

// FLASHLIFT_THREADS; nothing if it is unset, or not a number from 1 to kMostThreads.
std::optional<int> wanted_thread_count();

// Fails if a variable of the table has an invalid value. Variables that name libraries, reports and instruction sets
// are checked when they are used. A relative FLASHLIFT_CACHE_DIR fails here, because a compilation that finds no tuning
// database takes the problem as untuned.
Status check_environment();

}  // namespace flashlift
