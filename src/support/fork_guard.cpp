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

// Plain atomics: they stay usable in a child whatever the other threads of the parent were doing.
std::atomic<int> open_sections{0};  // the outermost of each thread
std::atomic<bool> is_forking{false};
std::atomic<int> generation{0};
std::atomic<bool> was_cut{false};
std::atomic<bool> is_ending{false};  // by exit()
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
  is_ending = false;  // by a thread that the child does not have
}

void before_exit() {
  is_ending = true;
  wait_for_others();
}

// exit() runs first what was registered last, so that static objects which a section has made since this library was
// loaded would go before the section ends. Only the objects of the thread that calls exit() go earlier still. That
// thread is the main one as a rule; others register nothing at their end, of which there may be any number.
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

// When the library is loaded: a fork() before the first call counts too.
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
