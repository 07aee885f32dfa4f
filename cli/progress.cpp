#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <utility>

namespace flashlift::cli {
namespace {

constexpr std::chrono::milliseconds kQuiet(100);  // shorter work shows nothing
constexpr std::chrono::milliseconds kInterval(200);
constexpr const char* kStartOfLine = "\r\033[K";  // and clears the line

bool terminal_watches() { return isatty(STDERR_FILENO) != 0; }

// Not fmt::print, which throws if it cannot write to standard error.
void write(const std::string& text) {
  std::fputs((kStartOfLine + text).c_str(), stderr);
  std::fflush(stderr);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string duration(double seconds) {
  const int64_t whole = std::llround(seconds);
  return whole < 120 ? fmt::format("{} s", whole) : fmt::format("{} min", (whole + 30) / 60);
}

}  // namespace

StatusLine::StatusLine() : watched_(terminal_watches()), next_(Clock::now() + kQuiet) {}

StatusLine::~StatusLine() {
  if (shown_) {
    write("");
  }
}

bool StatusLine::is_due() const { return watched_ && Clock::now() >= next_; }

void StatusLine::show(const std::string& text) {
  write(text);
  shown_ = true;
  next_ = Clock::now() + kInterval;
}

Progress::Progress(std::string what, std::string unit, int64_t total)
    : what_(std::move(what)), unit_(std::move(unit)), total_(total) {}

void Progress::step() {
  ++done_;
  if (!line_.is_due()) {
    return;
  }
  const double rate = static_cast<double>(done_) / seconds_since(start_);
  line_.show(fmt::format("{}: {} % of {} {}, {:.0f} a second, {} left", what_, 100 * done_ / total_, total_, unit_,
                         rate, duration(static_cast<double>(total_ - done_) / rate)));
}

Elapsed::Elapsed(std::string what) : what_(std::move(what)) {
  if (terminal_watches()) {
    thread_ = std::thread([this] { show(); });
  }
}

Elapsed::~Elapsed() {
  if (!thread_.joinable()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Elapsed::show() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  bool shown = false;
  for (auto wait = kQuiet; !changed_.wait_for(lock, wait, [this] { return done_; }); wait = kInterval) {
    write(fmt::format("{}: {}", what_, duration(seconds_since(start))));
    shown = true;
  }
  if (shown) {
    write("");
  }
}

}  // namespace flashlift::cli
