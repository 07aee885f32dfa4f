#include "runtime/tbb_executor.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <charconv>

#include "support/environment.h"
#include "support/log.h"

namespace flashlift::runtime {
namespace {

int wanted_threads() {
  const auto text = environment_value(EnvironmentVariable::kThreads);
  if (!text) {
    return tbb::task_arena::automatic;
  }
  int threads = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), threads);
  if (error != std::errc() || end != text->data() + text->size() || threads < 1) {
    log(LogLevel::kWarning, "FLASHLIFT_THREADS is '{}', expected a number from 1; using all cores", *text);
    return tbb::task_arena::automatic;
  }
  return threads;
}

class TbbExecutor : public Executor {
 public:
  TbbExecutor() : arena_(wanted_threads()) {}

  int concurrency() const override { return arena_.max_concurrency(); }

  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override {
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
  mutable tbb::task_arena arena_;
};

}  // namespace

Executor& default_executor() {
  // Never destroyed: a static library user may run attention from another static's destructor.
  static TbbExecutor* executor = new TbbExecutor;
  return *executor;
}

}  // namespace flashlift::runtime
