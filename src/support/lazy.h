// Objects that are made at their first use and never destroyed.
#pragma once

#include <atomic>
#include <mutex>

#include "support/fork_guard.h"

namespace flashlift {

// For function-local static objects: `static constinit Lazy<Table> table; return table.get(make_table);`. Safe to use
// from any thread. A plain static local differs in two ways:
// - The compiler's lock stays locked in a child if another thread made the object during fork(), so that the child
//   would wait for ever. fork() waits for this one.
// - While the process exits and destroys static objects, other threads may still compile. Nobody destroys this one.
template <typename T>
class Lazy {
 public:
  // make() returns a T. If it throws, the next caller calls it again.
  template <typename Make>
  T& get(const Make& make) {
    T* const made = made_.load(std::memory_order_acquire);
    return made != nullptr ? *made : make_once(make);
  }

 private:
  template <typename Make>
  T& make_once(const Make& make) {
    const UncutByFork uncut;
    const std::lock_guard lock(mutex_);
    if (made_.load(std::memory_order_relaxed) == nullptr) {
      made_.store(new T(make()), std::memory_order_release);
    }
    return *made_.load(std::memory_order_relaxed);
  }

  std::atomic<T*> made_{nullptr};
  std::mutex mutex_;
};

}  // namespace flashlift
