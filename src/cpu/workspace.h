// Temporary memory of one thread, kept between calls so that a warmed call allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "support/rounding.h"

namespace flashlift::cpu {

// One growing block of cache-line aligned memory.
class Workspace {
 public:
  Workspace() = default;
  ~Workspace() { std::free(data_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // At least this many bytes, their content undefined; null if there is no memory.
  std::byte* reserve(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = (bytes + 4095) / 4096 * 4096;
      data_ = static_cast<std::byte*>(std::aligned_alloc(64, size_));
      if (data_ == nullptr) {
        size_ = 0;
      }
    }
    return data_;
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// One workspace per thread and use: a thread that waits inside one call's parallel section may be given work of
// another.
inline Workspace& tile_workspace() {
  thread_local Workspace workspace;
  return workspace;
}
inline Workspace& call_workspace() {
  thread_local Workspace workspace;
  return workspace;
}

// Takes pieces of one block of memory, each on a cache line of its own.
class LayoutCounter {
 public:
  // Where `count` elements of `size` bytes begin.
  size_t take(int64_t count, size_t size) {
    const size_t at = bytes_;
    bytes_ += static_cast<size_t>(round_up(count * static_cast<int64_t>(size), 64));
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

}  // namespace flashlift::cpu
