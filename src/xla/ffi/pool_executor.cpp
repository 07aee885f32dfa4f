#include "xla/ffi/pool_executor.h"

#include <algorithm>
#include <atomic>
#include <memory>

namespace flashlift::xla {
namespace {

// Lives until the last scheduled task has run, which may start after parallel_for has returned. Such a task finds no
// index left, and does not use `body`.
struct Loop {
  Loop(int64_t indices, const std::function<void(int64_t)>& function) : count(indices), body(&function) {}

  void take_part() {
    int64_t ran = 0;
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      (*body)(i);
      ++ran;
    }
    if (ran > 0 && finished.fetch_add(ran) + ran == count) {
      finished.notify_one();
    }
  }

  void wait() {
    for (int64_t seen = finished.load(); seen != count; seen = finished.load()) {
      finished.wait(seen);
    }
  }

  const int64_t count;
  const std::function<void(int64_t)>* const body;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> finished{0};
};

}  // namespace

void PoolExecutor::parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  if (count <= 0) {
    return;
  }
  const auto loop = std::make_shared<Loop>(count, body);
  const int64_t helpers = std::min<int64_t>(threads_, count) - 1;
  for (int64_t i = 0; i < helpers; ++i) {
    schedule_([loop] { loop->take_part(); });
  }
  loop->take_part();
  loop->wait();
}

}  // namespace flashlift::xla
