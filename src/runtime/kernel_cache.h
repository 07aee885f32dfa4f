// A cache of compiled kernels in memory. Each key is compiled once, even if several threads make the first call. If the
// cache is full, it drops the least recently used entry.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "flashlift/result.h"
#include "support/fork_guard.h"

namespace flashlift::runtime {

template <typename Kernel>
class KernelCache {
 public:
  using Handle = std::shared_ptr<const Kernel>;

  explicit KernelCache(size_t capacity) : capacity_(capacity) {}

  // The kernel of this key. The first caller compiles it while the others wait. A failed compilation is not kept: the
  // waiting callers get its error, and the next caller tries again. If compile() throws, its caller gets the exception,
  // and one of the waiting callers compiles.
  template <typename Compile>
  Result<Handle> get(const std::string& key, const Compile& compile) {
    const UncutByFork uncut;
    const std::shared_ptr<Entry> entry = find_or_add(key);
    const std::lock_guard lock(entry->mutex);
    if (!entry->result) {
      FLASHLIFT_RETURN_IF_ERROR(uncut.status());
      entry->result.emplace(compile());
      if (!entry->result->ok()) {
        remove(key, entry);
      }
    }
    return *entry->result;
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
    order_.clear();
  }

 private:
  struct Entry {
    std::mutex mutex;  // held while it is compiled
    std::optional<Result<Handle>> result;
  };
  struct Slot {
    std::shared_ptr<Entry> entry;
    std::list<std::string>::iterator position;
  };

  std::shared_ptr<Entry> find_or_add(const std::string& key) {
    const std::lock_guard lock(mutex_);
    if (const auto found = entries_.find(key); found != entries_.end()) {
      order_.splice(order_.begin(), order_, found->second.position);
      return found->second.entry;
    }
    // Operations that may throw come first, so that the two lists stay consistent.
    std::list<std::string> first{key};
    auto entry = std::make_shared<Entry>();
    entries_.emplace(key, Slot{entry, first.begin()});
    order_.splice(order_.begin(), first);
    evict();
    return entry;
  }

  // Threads that still compile or use the evicted kernel hold a reference to it.
  void evict() {
    while (entries_.size() > capacity_) {
      entries_.erase(order_.back());
      order_.pop_back();
    }
  }

  void remove(const std::string& key, const std::shared_ptr<Entry>& entry) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    if (found != entries_.end() && found->second.entry == entry) {
      order_.erase(found->second.position);
      entries_.erase(found);
    }
  }

  const size_t capacity_;
  mutable std::mutex mutex_;
  std::list<std::string> order_;  // most recently used first
  std::unordered_map<std::string, Slot> entries_;
};

}  // namespace flashlift::runtime
