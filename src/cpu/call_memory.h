// The temporary memory of one call. All of it is reserved before the call writes anything, and kept for the thread's
// later calls, so that a repeated call allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "flashlift/result.h"
#include "support/rounding.h"
#include "visits/visits.h"

namespace flashlift::cpu {

// The memory of one worker of a call. It belongs to the call and not to the worker's thread: a thread could only report
// that memory runs out after others have begun to write.
struct WorkerMemory {
  std::byte* tiles = nullptr;
  std::span<visits::VisitRow> visits;
};

class CallMemory {
 public:
  struct Sizes {
    size_t shared = 0;  // bytes shared by all workers
    int64_t workers = 1;
    size_t tiles = 0;     // bytes per worker, a multiple of 64
    int64_t visits = 0;   // rows of visited tiles that each worker holds at a time
    int64_t visited = 0;  // the largest number of tiles in one of these rows
  };

  // Bound by each call before reserve().
  visits::Visits visits;

  // The contents of the reserved memory are undefined. Errors: no memory; may throw std::bad_alloc too.
  Status reserve(const Sizes& sizes);

  std::byte* shared() const { return block_.data; }
  WorkerMemory worker(int64_t index) {
    return {block_.data + sizes_.shared + static_cast<size_t>(index) * sizes_.tiles,
            std::span(rows_).subspan(static_cast<size_t>(index * sizes_.visits), static_cast<size_t>(sizes_.visits))};
  }

 private:
  friend struct UnusedMemory;

  // One growing block on cache lines.
  struct Block {
    Block() = default;
    ~Block() { ::operator delete(data, kAlignment); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    bool reserve(size_t bytes);

    static constexpr std::align_val_t kAlignment{64};
    std::byte* data = nullptr;
    size_t size = 0;
  };

  Sizes sizes_;
  Block block_;
  std::vector<visits::VisitRow> rows_;
  CallMemory* next_ = nullptr;  // of the thread's unused ones
};

// Allocates pieces of one block of memory, each on its own cache line.
class LayoutCounter {
 public:
  // The start of `count` elements of `size` bytes.
  size_t take(int64_t count, size_t size) {
    const size_t at = bytes_;
    bytes_ += static_cast<size_t>(round_up(count * static_cast<int64_t>(size), 64));
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

// The memory of a call while it runs. A thread that waits inside one call's parallel section may run another call,
// which gets its own memory.
class CallLease {
 public:
  CallLease();  // may throw std::bad_alloc
  ~CallLease();
  CallLease(const CallLease&) = delete;
  CallLease& operator=(const CallLease&) = delete;

  CallMemory& operator*() const { return *memory_; }
  CallMemory* operator->() const { return memory_; }

 private:
  CallMemory* memory_;
};

}  // namespace flashlift::cpu
