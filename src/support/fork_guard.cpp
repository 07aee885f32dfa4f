#include "support/fork_guard.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace flashlift {
namespace {

using Clock = std::chrono::steady_clock;

// Plain atomics: they stay usable in a child whatever the other threads of the parent were doing.
std::atomic<int> open_sections{0};  // the outermost of each thread
std::atomic<bool> is_forking{false};
std::atomic<int> generation{0};
std::atomic<bool> was_cut{false};
thread_local int depth = 0;  // of this thread's sections

void wait_a_little() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

int own_sections() { return depth > 0 ? 1 : 0; }

void before_fork() {
  is_forking = true;
  const auto end = Clock::now() + std::chrono::seconds(kLongestForkSeconds);
  while (open_sections != own_sections() && Clock::now() < end) {
    wait_a_little();
  }
}

void in_parent() { is_forking = false; }

void in_child() {
  ++generation;
  was_cut = was_cut || open_sections != own_sections();
  open_sections = own_sections();
  is_forking = false;
}

// When the library is loaded: a fork() before the first call counts too.
[[maybe_unused]] const int kRegistered = pthread_atfork(before_fork, in_parent, in_child);

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
