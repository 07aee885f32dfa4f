#include "runtime/tbb_executor.h"

#include <pthread.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <atomic>
#include <optional>
#include <vector>

#include "support/environment.h"
#include "support/fork_guard.h"
#include "support/lazy.h"
#include "support/log.h"

namespace flashlift::runtime {
namespace {

int wanted_threads() { return wanted_thread_count().value_or(tbb::info::default_concurrency()); }

void* wait_for_end(void* may_end) {
  static_cast<std::atomic<bool>*>(may_end)->wait(false);
  return nullptr;
}

// The number of threads, up to `count`, that the system can start besides this one. oneTBB throws if it cannot start a
// thread, also in its own threads, which ends the process.
int startable_threads(int count) {
  std::atomic<bool> may_end{false};
  std::vector<pthread_t> threads;
  for (pthread_t thread{}; static_cast<int>(threads.size()) < count; threads.push_back(thread)) {
    if (pthread_create(&thread, nullptr, wait_for_end, &may_end) != 0) {
      break;
    }
  }
  may_end = true;
  may_end.notify_all();
  for (const pthread_t thread : threads) {
    pthread_join(thread, nullptr);
  }
  return static_cast<int>(threads.size());
}

class TbbExecutor : public Executor {
 public:
  TbbExecutor() : wanted_(wanted_threads()), threads_(1 + startable_threads(wanted_ - 1)), arena_(threads_) {
    if (threads_ > tbb::info::default_concurrency()) {  // oneTBB would print a warning and start no more
      more_threads_.emplace(tbb::global_control::max_allowed_parallelism, threads_);
    }
    // Otherwise the first parallel_for() would load libraries. In a child of a process that was forked in the middle of
    // dlopen(), the next dlopen(), such as LLVM's, ends the process.
    arena_.initialize();
  }

  int concurrency() const override { return is_forked() ? 1 : threads_; }

  void warn_of_missing_threads() {
    if (threads_ < wanted_ && !has_warned_.exchange(true)) {
      log(LogLevel::kWarning, "the CPU's pool has {} threads in place of {}: the system starts no more", threads_,
          wanted_);
    }
  }

  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override {
    if (is_forked() || threads_ == 1) {
      for (int64_t i = 0; i < count; ++i) {
        body(i);
      }
      return;
    }
    // Isolated: a thread that waits here must not run other tasks, which would overwrite its tiles.
    arena_.execute([&] {
      tbb::this_task_arena::isolate([&] {
        tbb::parallel_for(
            tbb::blocked_range<int64_t>(0, count, 1),
            [&](const tbb::blocked_range<int64_t>& range) {
              for (int64_t i = range.begin(); i != range.end(); ++i) {
                body(i);
              }
            },
            tbb::simple_partitioner());
      });
    });
  }

 private:
  // A forked child has none of oneTBB's threads, although oneTBB still counts them, and locks that they held stay
  // locked.
  bool is_forked() const { return fork_generation() != generation_; }

  int wanted_;
  int threads_;
  std::atomic<bool> has_warned_{false};
  std::optional<tbb::global_control> more_threads_;
  mutable tbb::task_arena arena_;
  int generation_ = fork_generation();
};

}  // namespace

Executor& default_executor() {
  static constinit Lazy<TbbExecutor> lazy;
  TbbExecutor& executor = lazy.get([] { return TbbExecutor(); });
  executor.warn_of_missing_threads();
  return executor;
}

}  // namespace flashlift::runtime
