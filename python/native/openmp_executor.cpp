// An executor for the C interface on the OpenMP runtime that a process already uses, such as PyTorch's.
//
// While that runtime's threads wait for their next parallel region, they spin on the processors that a second pool
// would need. Also, only the caller's own pool has the size that the caller chose. The runtime is found at run time,
// and not by compiling with -fopenmp, because it must be the one that the host uses: a process may contain several.
// This file does not use Python: its function is called without the interpreter's lock.
#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace {

// libgomp's function for `#pragma omp parallel`, which LLVM's and Intel's runtimes have, too.
using GompParallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

struct Loop {
  void (*body)(void* context, int64_t index);
  void* context;
  int64_t count;
  std::atomic<int64_t> next{0};

  void work() {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      body(context, i);
    }
  }
};

std::atomic<bool> is_forked{false};

// libgomp would wait forever for threads that a fork() left in the parent.
[[maybe_unused]] const int kRegistered =
    pthread_atfork(nullptr, nullptr, [] { is_forked.store(true, std::memory_order_relaxed); });

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// FlashliftExecutor::parallel_for. Its context is the address of GOMP_parallel, or null to use only the calling thread.
// The team has the size that the calling thread set in its runtime: libgomp ends the threads that a smaller team does
// not need, and starts new ones for the next larger team. Any team works: in a nested region, a team of one thread does
// all of the work.
void flashlift_openmp_parallel_for(void* context, int64_t count, void (*body)(void* body_context, int64_t index),
                                   void* body_context) {
  Loop loop{body, body_context, count};
  if (context == nullptr) {
    loop.work();
    return;
  }
  const auto parallel = reinterpret_cast<GompParallel>(context);
  parallel([](void* data) { static_cast<Loop*>(data)->work(); }, &loop, 0, 0);
}

// Whether this process was forked from one that had loaded this library. It may then lack the threads that its runtime
// expects, and GOMP_parallel must not be passed to the function above.
int32_t flashlift_openmp_is_forked(void) { return is_forked.load(std::memory_order_relaxed) ? 1 : 0; }
}
#pragma GCC visibility pop
