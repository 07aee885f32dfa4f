#include "support/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
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
std::atomic<bool> is_ending{false};       // exit() is running
std::atomic<Clock::rep> paused_until{0};  // no section begins before this time
thread_local int depth = 0;               // of this thread's sections

void wait_a_little() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

int own_sections() { return depth > 0 ? 1 : 0; }

bool is_paused() {
  const Clock::rep until = paused_until;
  return until != 0 && Clock::now().time_since_epoch().count() < until;
}

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
  paused_until = 0;
}

void before_exit() {
  is_ending = true;
  paused_until = 0;
  wait_for_others();
}

// exit() runs the last registered function first. Static objects that a section creates after this library was loaded
// would therefore be destroyed before the section ends. To prevent this, before_exit is registered again at the end of
// the thread that calls exit(). Only the thread-local objects of that thread are destroyed earlier. It is usually the
// main thread; other threads do not register it, since there may be any number of them. No section runs from then until
// before_exit does, since an object that it made in between would be destroyed first. The pause has an end, because the
// main thread may also end by pthread_exit(), which leaves the process running.
struct RegistersOnceMore {
  ~RegistersOnceMore() {
    if (gettid() != getpid()) {
      return;
    }
    paused_until = std::numeric_limits<Clock::rep>::max();
    wait_for_others();
    std::atexit(before_exit);
    paused_until = (Clock::now() + std::chrono::seconds(1)).time_since_epoch().count();
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
  while (is_forking || is_paused()) {
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
