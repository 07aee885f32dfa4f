// The library's one log: on standard error, from FLASHLIFT_LOG's level on, and silent without it.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace flashlift {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

bool log_enabled(LogLevel level);
void log_message(LogLevel level, std::string_view message);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) {
    log_message(level, fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace flashlift
