// What fork() and exit() must not cut in two. A child has one thread, the one that forked: what another thread of the
// parent had locked stays locked in it for ever. exit() destroys static objects, LLVM's and MLIR's among them, while
// other threads go on.
#pragma once

#include "flashlift/result.h"

namespace flashlift {

// While one of these lives, in any thread, fork() waits (for kLongestForkSeconds at most), and so does exit(). For
// sections that end by themselves: compiling, and looking something up under a lock. They may nest.
class UncutByFork {
 public:
  UncutByFork();
  ~UncutByFork();
  UncutByFork(const UncutByFork&) = delete;
  UncutByFork& operator=(const UncutByFork&) = delete;

  // An error where exit() was called before: what compiles must not begin, since what it needs may be gone.
  Status status() const;

 private:
  bool is_too_late_ = false;
};

// A thread that works while another one waits for it is within that one's sections: it must not wait for a fork() that
// waits for them. The new thread says so, which ends before they do.
int sections_of_this_thread();
void count_as_within(int sections);

inline constexpr int kLongestForkSeconds = 10;

// How many forks lie between this process and the first one that loaded this library. What belongs to threads, such as
// a pool, belongs to the process that started them.
int fork_generation();

// Whether fork() could wait no longer and cut such a section: then this process must not rely on what is shared.
bool was_cut_by_fork();

}  // namespace flashlift
