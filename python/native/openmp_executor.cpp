// An executor for the C interface on the OpenMP runtime that a process already has, such as PyTorch's.
//
// While threads of that runtime wait for their next parallel region they spin, on the processors that a second pool
// would need; and only the caller's own pool is as large as the caller asked for. The runtime is found at run time, and
// not by compiling with -fopenmp, because it has to be the very one that the host uses: a process may hold several.
// Nothing here is Python's: the function is called without the interpreter's lock.
#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace {

// libgomp's entry point of `#pragma omp parallel`, which LLVM's and Intel's runtimes have too.
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

// libgomp waits forever for threads that a fork() left behind in the parent.
[[maybe_unused]] const int kRegistered =
    pthread_atfork(nullptr, nullptr, [] { is_forked.store(true, std::memory_order_relaxed); });

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// FlashliftExecutor::parallel_for; its context is the address of GOMP_parallel, or null for the calling thread alone.
// The team is what the calling thread asked its runtime for: libgomp ends the threads that a smaller team has no use
// for, and begins them anew for the next one. Any team will do, so that a nested region's team of one thread does all
// of the work.
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

// Whether this process is a child by fork() of one that had loaded this library: then it may not have the threads that
// its runtime believes in, and the function above must not be given GOMP_parallel.
int32_t flashlift_openmp_is_forked(void) { return is_forked.load(std::memory_order_relaxed) ? 1 : 0; }
}
#pragma GCC visibility pop
