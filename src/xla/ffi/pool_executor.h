// Adapts a thread pool of another library, to which tasks can only be added, to an executor.
#pragma once

#include <functional>

#include "flashlift/attention.h"

namespace flashlift::xla {

class PoolExecutor : public Executor {
 public:
  // `schedule` adds one task to the pool, which runs it later on one of its `threads` threads.
  PoolExecutor(int threads, std::function<void(std::function<void()>)> schedule)
      : threads_(threads), schedule_(std::move(schedule)) {}

  int concurrency() const override { return threads_; }

  // The caller takes part, and waits only for tasks that have started: it may be the pool's last free thread itself, so
  // that waiting for tasks that have not started could last forever.
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override;

 private:
  int threads_;
  std::function<void(std::function<void()>)> schedule_;
};

}  // namespace flashlift::xla
