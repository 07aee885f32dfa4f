#include "runtime/tbb_executor.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <optional>

#include "support/environment.h"
#include "support/fork_guard.h"

namespace flashlift::runtime {
namespace {

int wanted_threads() {
  const std::optional<int> threads = wanted_thread_count();
  return threads ? *threads : tbb::task_arena::automatic;
}

class TbbExecutor : public Executor {
 public:
  TbbExecutor() : arena_(wanted_threads()) {}

  int concurrency() const override { return is_forked() ? 1 : arena_.max_concurrency(); }

  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override {
    if (is_forked()) {
      for (int64_t i = 0; i < count; ++i) {
        body(i);
      }
      return;
    }
    // Isolated: a thread that waits here takes no other work, whose tiles would overwrite its own.
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
  // A child of fork() has none of the threads that oneTBB believes in, and what those had locked stays locked.
  bool is_forked() const { return fork_generation() != generation_; }

  mutable tbb::task_arena arena_;
  int generation_ = fork_generation();
};

}  // namespace

Executor& default_executor() {
  const UncutByFork uncut;
  // Never destroyed: a static library user may run attention from another static's destructor.
  static TbbExecutor* executor = new TbbExecutor;
  return *executor;
}

}  // namespace flashlift::runtime
