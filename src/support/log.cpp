#include "support/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "support/environment.h"
#include "support/fork_guard.h"
#include "support/lazy.h"
#include "support/printable.h"

namespace flashlift {
namespace {

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
spdlog::logger& logger() {
  static constinit Lazy<spdlog::logger> instance;
  return instance.get([] {
    spdlog::logger made("flashlift", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    const auto text = environment_value(EnvironmentVariable::kLog);
    made.set_level(text ? spdlog::level::from_str(std::string(*text)) : spdlog::level::off);
    return made;
  });
}

}  // namespace

bool log_enabled(LogLevel level) { return logger().should_log(to_spdlog(level)); }

void log_message(LogLevel level, std::string_view message) {
  const UncutByFork uncut;  // the logger locks a mutex
  logger().log(to_spdlog(level), printable(message));
}

}  // namespace flashlift
