#include "support/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "support/error.h"

namespace flashlift {
namespace {

using Clock = std::chrono::steady_clock;

// Atomics without locks: they are usable in a child whatever the parent's other threads were doing.
std::atomic<int> open_sections{0};  // counts the outermost section of each thread
std::atomic<bool> is_forking{false};
std::atomic<int> generation{0};
std::atomic<bool> was_cut{false};
std::atomic<bool> is_ending{false};  // exit() is running
thread_local int depth = 0;          // of this thread's sections

void wait_a_little() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

int own_sections() { return depth > 0 ? 1 : 0; }

void wait_for_others() {
  const auto end = Clock::now() + std::chrono::seconds(kLongestForkSeconds);
  while (open_sections != own_sections() && Clock::now() < end) {
    wait_a_little();
  }
}

void before_fork() {
  is_forking = true;
  wait_for_others();
}

void in_parent() { is_forking = false; }

void in_child() {
  ++generation;
  was_cut = was_cut || open_sections != own_sections();
  open_sections = own_sections();
  is_forking = false;
  is_ending = false;  // exit() was called by a thread that the child does not have
}

void before_exit() {
  is_ending = true;
  wait_for_others();
}

// exit() runs the last registered function first. Static objects that a section creates after this library was loaded
// would therefore be destroyed before the section ends. To prevent this, before_exit is registered again at the end of
// the thread that calls exit(). Only the thread-local objects of that thread are destroyed earlier. It is usually the
// main thread; other threads do not register it, since there may be any number of them.
struct RegistersOnceMore {
  ~RegistersOnceMore() {
    if (gettid() == getpid()) {
      std::atexit(before_exit);
    }
  }
};
void watch_this_thread() { [[maybe_unused]] static thread_local const RegistersOnceMore at_end_of_thread; }

int watch() noexcept {
  watch_this_thread();
  std::atexit(before_exit);
  return pthread_atfork(before_fork, in_parent, in_child);
}

// Runs when the library is loaded, so that a fork() before the first call counts, too.
[[maybe_unused]] const int kRegistered = watch();

}  // namespace

UncutByFork::UncutByFork() {
  if (depth++ > 0) {
    return;
  }
  ++open_sections;
  while (is_forking) {
    --open_sections;
    wait_a_little();
    ++open_sections;
  }
  watch_this_thread();
  is_too_late_ = is_ending;
}

Status UncutByFork::status() const {
  return is_too_late_ ? internal_error("the process ends: nothing is compiled once exit() has been called") : Status();
}

UncutByFork::~UncutByFork() {
  if (--depth == 0) {
    --open_sections;
  }
}

int sections_of_this_thread() { return depth; }
void count_as_within(int sections) { depth += sections; }

int fork_generation() { return generation.load(std::memory_order_relaxed); }
bool was_cut_by_fork() { return was_cut.load(std::memory_order_relaxed); }

}  // namespace flashlift
