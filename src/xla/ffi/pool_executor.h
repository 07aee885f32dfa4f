// A thread pool that belongs to somebody else and only takes tasks, as an executor.
#pragma once

#include <functional>

#include "flashlift/attention.h"

namespace flashlift::xla {

class PoolExecutor : public Executor {
 public:
  // `schedule` hands one task to the pool, which runs it sometime on one of its `threads` threads.
  PoolExecutor(int threads, std::function<void(std::function<void()>)> schedule)
      : threads_(threads), schedule_(std::move(schedule)) {}

  int concurrency() const override { return threads_; }

  // The caller takes part, and waits only for work that has begun: it may be the pool's last free thread itself, so a
  // wait for tasks that have yet to start could last forever.
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override;

 private:
  int threads_;
  std::function<void(std::function<void()>)> schedule_;
};

}  // namespace flashlift::xla
