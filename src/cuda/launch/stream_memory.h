// Small device memory for launches. Launches on the same stream share it, because they run one after the other;
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
  CuPointer counters = 0;  // zeroed ints, zero again after every launch
  int64_t counter_bytes = 0;
  CuPointer scratch = 0;  // with undefined content
  int64_t scratch_bytes = 0;
};

// Belongs to one compiled kernel. Safe to call from any thread.
class StreamMemoryPool {
 public:
  explicit StreamMemoryPool(const Driver& driver) : driver_(driver) {}
  ~StreamMemoryPool();
  StreamMemoryPool(const StreamMemoryPool&) = delete;
  StreamMemoryPool& operator=(const StreamMemoryPool&) = delete;

  // The stream's memory in `context`, which must be current, with at least this many bytes. Pieces are cut from chunks,
  // so that only a first call allocates, or one that needs more than any before. A launch that is captured into a graph
  // gets memory of its own during the graph's lifetime, since the graph may run at any time and beside anything.
  Result<StreamMemory> get(const CurrentContext& context, CuStream stream, int64_t counter_bytes,
                           int64_t scratch_bytes);

 private:
  // Memory that graphs have returned, by context. A graph may outlive the pool.
  struct Returned {
    std::mutex mutex;
    std::map<uint64_t, std::vector<StreamMemory>> memory;
  };
  struct HeldByGraph {
    std::weak_ptr<Returned> home;
    uint64_t context;
    StreamMemory memory;
  };
  static void give_back(void* held);
  StreamMemory take_returned(uint64_t context, int64_t counter_bytes, int64_t scratch_bytes);
  Status leave_to_graph(CuStream stream, uint64_t context, const StreamMemory& memory) const;

  struct Key {
    uint64_t context;
    uint64_t stream;
    auto operator<=>(const Key&) const = default;
  };
  struct Chunk {
    CuPointer begin = 0;
    int64_t left = 0;
  };

  Status enlarge(uint64_t context, int64_t counter_bytes, int64_t scratch_bytes, StreamMemory& memory);
  Result<CuPointer> cut(uint64_t context, int64_t bytes);
  Result<CuPointer> allocate_zeroed(int64_t bytes) const;

  const Driver& driver_;
  std::mutex mutex_;
  std::map<Key, StreamMemory> streams_;
  std::map<uint64_t, Chunk> chunks_;  // by context
  std::vector<CuPointer> allocations_;
  std::shared_ptr<Returned> returned_ = std::make_shared<Returned>();
};

}  // namespace flashlift::cuda
