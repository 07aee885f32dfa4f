// Sections that fork() and exit() must not interrupt. A child has only the thread that called fork(): a lock that
// another thread of the parent held stays locked for ever. exit() destroys static objects, including LLVM's and MLIR's,
// while other threads continue.
#pragma once

#include "flashlift/result.h"

namespace flashlift {

// During the lifetime of such an object, in any thread, fork() waits (for at most kLongestForkSeconds), and so does
// exit(). For sections that end by themselves, such as compiling, and lookups under a lock. They may be nested.
class UncutByFork {
 public:
  UncutByFork();
  ~UncutByFork();
  UncutByFork(const UncutByFork&) = delete;
  UncutByFork& operator=(const UncutByFork&) = delete;

  // An error if exit() was called before: compiling must not start, because objects that it needs may be destroyed.
  Status status() const;

 private:
  bool is_too_late_ = false;
};

// A thread that works while another thread waits for it is inside that thread's sections: it must not wait for a fork()
// that waits for them. The new thread calls this function, and ends before the sections do.
int sections_of_this_thread();
void count_as_within(int sections);

inline constexpr int kLongestForkSeconds = 10;

// The number of forks between this process and the first one that loaded this library. Objects with threads, such as a
// pool, belong to the process that started the threads.
int fork_generation();

// Whether fork() gave up waiting and interrupted such a section: then this process must not use shared state.
bool was_cut_by_fork();

}  // namespace flashlift
