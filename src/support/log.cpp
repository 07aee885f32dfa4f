#include "support/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>

#include "support/environment.h"
#include "support/fork_guard.h"
#include "support/lazy.h"
#include "support/printable.h"

namespace flashlift {
namespace {

struct LogState {
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink;  // null for the default
};

LogState& state() {
  static constinit Lazy<LogState> instance;
  return instance.get([] { return LogState(); });
}

std::shared_ptr<const LogSink> current_sink() {
  const UncutByFork uncut;
  const std::lock_guard lock(state().mutex);
  return state().sink;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::off;
}

// Not in spdlog's registry, so that a host that also uses spdlog is not affected.
spdlog::logger& default_logger() {
  static constinit Lazy<spdlog::logger> logger;
  return logger.get([] {
    spdlog::logger made("flashlift", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    const auto text = environment_value(EnvironmentVariable::kLog);
    made.set_level(text ? spdlog::level::from_str(std::string(*text)) : spdlog::level::off);
    return made;
  });
}

}  // namespace

void set_log_sink(LogSink sink) {
  const UncutByFork uncut;
  const std::lock_guard lock(state().mutex);
  state().sink = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
}

bool log_enabled(LogLevel level) { return current_sink() != nullptr || default_logger().should_log(to_spdlog(level)); }

void log_message(LogLevel level, std::string_view message) {
  if (const auto sink = current_sink()) {
    (*sink)(level, message);
    return;
  }
  const UncutByFork uncut;  // the logger locks a mutex
  default_logger().log(to_spdlog(level), printable(message));
}

}  // namespace flashlift
