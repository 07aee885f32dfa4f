// Every environment variable that Flashlift reads, in one table (at most twelve).
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace flashlift {

enum class EnvironmentVariable { kLog, kIsa, kThreads, kCacheDir, kNvrtc };

struct EnvironmentEntry {
  EnvironmentVariable variable;
  const char* name;
  const char* meaning;
};

std::span<const EnvironmentEntry> environment_table();
// The variable's value, or nothing where it is unset or empty.
std::optional<std::string_view> environment_value(EnvironmentVariable variable);

}  // namespace flashlift
