// Shows the progress of long work on one line of standard error, if that is a terminal. Short work shows nothing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace flashlift::cli {

// The line's current text, which is removed at the end.
class StatusLine {
 public:
  StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;
  ~StatusLine();

  // Whether the next text would be shown: standard error is a terminal, and the last text was shown for long enough.
  bool is_due() const;
  void show(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  bool watched_;
  bool shown_ = false;
  Clock::time_point next_;
};

// "checking: 40 % of 8192 rows, 1024 a second, 5 s left"
class Progress {
 public:
  Progress(std::string what, std::string unit, int64_t total);

  // One more item is done.
  void step();

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  std::string unit_;
  int64_t total_;
  int64_t done_ = 0;
  Clock::time_point start_ = Clock::now();
  StatusLine line_;
};

// Shows "fusing model.mlir: 12 s", for work whose progress is unknown.
class Elapsed {
 public:
  explicit Elapsed(std::string what);
  Elapsed(const Elapsed&) = delete;
  Elapsed& operator=(const Elapsed&) = delete;
  ~Elapsed();  // removes the line

 private:
  void show();

  std::string what_;
  bool done_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;  // not started without a terminal
};

}  // namespace flashlift::cli
