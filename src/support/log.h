// The library's one log. It is silent until FLASHLIFT_LOG names a level or the host program sets a sink.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>

namespace flashlift {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
using LogSink = std::function<void(LogLevel, std::string_view)>;

// Replaces where messages go; an empty sink restores the default (standard error, at FLASHLIFT_LOG's level).
void set_log_sink(LogSink sink);
bool log_enabled(LogLevel level);
void log_message(LogLevel level, std::string_view message);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) {
    log_message(level, fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace flashlift
