#include "cpu/call_memory.h"

#include "support/error.h"
#include "support/per_thread.h"

namespace flashlift::cpu {

// A stack: the pages of the most recently used memory are in the caches.
struct UnusedMemory {
  ~UnusedMemory() {
    while (first != nullptr) {
      delete take();
    }
  }
  CallMemory* take() {
    CallMemory* memory = first;
    first = memory->next_;
    return memory;
  }
  void put(CallMemory* memory) {
    memory->next_ = first;
    first = memory;
  }

  CallMemory* first = nullptr;
};

namespace {

UnusedMemory& unused_memory() {
  static constinit thread_local PerThread<UnusedMemory> unused;
  return unused.get();
}

}  // namespace

bool CallMemory::Block::reserve(size_t bytes) {
  if (bytes > size) {
    ::operator delete(data, kAlignment);
    size = 0;
    data = static_cast<std::byte*>(::operator new(bytes, kAlignment, std::nothrow));
    if (data == nullptr) {
      return false;
    }
    size = bytes;
  }
  return true;
}

Status CallMemory::reserve(const Sizes& sizes) {
  sizes_ = sizes;
  sizes_.shared = (sizes.shared + 63) / 64 * 64;
  const size_t bytes = sizes_.shared + static_cast<size_t>(sizes.workers) * sizes.tiles;
  if (!block_.reserve(bytes)) {
    return internal_error("not enough memory for {} bytes of tiles and sums; nothing was written", bytes);
  }
  const auto rows = static_cast<size_t>(sizes.workers * sizes.visits);
  if (rows_.size() < rows) {
    rows_.resize(rows);
  }
  for (size_t i = 0; i < rows; ++i) {
    visits.reserve(rows_[i], sizes.visited);
  }
  return {};
}

CallLease::CallLease() : memory_(unused_memory().first != nullptr ? unused_memory().take() : new CallMemory) {}

CallLease::~CallLease() { unused_memory().put(memory_); }

}  // namespace flashlift::cpu
