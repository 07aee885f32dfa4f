// Temporary memory of one thread, kept between calls so that a warmed call allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

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

}  // namespace flashlift::cpu
