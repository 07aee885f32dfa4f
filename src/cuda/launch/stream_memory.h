// Small device memory that launches on one stream share: launches on a stream run one after the other, so they can;
// launches on different streams must not.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/launch/driver.h"

namespace flashlift::cuda {

struct StreamMemory {
  CuPointer scheduler = 0;  // two zeroed ints, zero again after every launch
  CuPointer bounds = 0;     // of captured tensors
  int64_t bounds_bytes = 0;
};

// Belongs to one compiled kernel. Safe to call from any thread.
class StreamMemoryPool {
 public:
  explicit StreamMemoryPool(const Driver& driver) : driver_(driver) {}
  ~StreamMemoryPool();
  StreamMemoryPool(const StreamMemoryPool&) = delete;
  StreamMemoryPool& operator=(const StreamMemoryPool&) = delete;

  // The stream's memory in the current context, with at least `bounds_bytes` for bounds. Allocates only when a stream
  // is new or needs more. A launch being captured into a graph gets memory of its own, kept for good: when and beside
  // what the graph will run is not known.
  Result<StreamMemory> get(CuStream stream, int64_t bounds_bytes);

 private:
  struct Key {
    uint64_t context;
    uint64_t stream;
    auto operator<=>(const Key&) const = default;
  };

  Status allocate(CuPointer& pointer, int64_t bytes);
  Status create(CuStream stream, int64_t bounds_bytes, StreamMemory& memory);

  const Driver& driver_;
  std::mutex mutex_;
  std::map<Key, StreamMemory> streams_;
  std::vector<CuPointer> allocations_;
};

}  // namespace flashlift::cuda
