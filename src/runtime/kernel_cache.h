// Compiled kernels kept in memory: one compile per key, even under concurrent first calls; the least recently used
// entry goes when the cache is full.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "flashlift/result.h"

namespace flashlift::runtime {

template <typename Kernel>
class KernelCache {
 public:
  using Handle = std::shared_ptr<const Kernel>;

  explicit KernelCache(size_t capacity) : capacity_(capacity) {}

  // The kernel of this key, compiled by the first caller while the others wait. A failed compile is not kept: the
  // waiting callers get its error, the next one tries again.
  template <typename Compile>
  Result<Handle> get(const std::string& key, const Compile& compile) {
    std::shared_ptr<Entry> entry;
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      const auto found = entries_.find(key);
      if (found != entries_.end()) {
        order_.splice(order_.begin(), order_, found->second.position);
        entry = found->second.entry;
      } else {
        first = true;
        entry = std::make_shared<Entry>();
        order_.push_front(key);
        entries_[key] = {entry, order_.begin()};
        evict();
      }
    }
    if (first) {
      Result<Handle> compiled = compile();
      if (!compiled.ok()) {
        remove(key, entry);
      }
      const std::lock_guard lock(entry->mutex);
      entry->result.emplace(std::move(compiled));
      entry->ready.notify_all();
      return *entry->result;
    }
    std::unique_lock lock(entry->mutex);
    entry->ready.wait(lock, [&] { return entry->result.has_value(); });
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
    std::mutex mutex;
    std::condition_variable ready;
    std::optional<Result<Handle>> result;
  };
  struct Slot {
    std::shared_ptr<Entry> entry;
    std::list<std::string>::iterator position;
  };

  // Whoever still compiles or uses the evicted kernel holds it alive.
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
