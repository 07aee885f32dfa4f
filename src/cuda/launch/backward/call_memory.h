// Device memory of one backward call.
#pragma once

#include <cstdint>
#include <utility>

#include "cuda/launch/stream_memory.h"
#include "flashlift/device_allocator.h"
#include "support/rounding.h"

namespace flashlift::cuda {

inline constexpr int64_t kPieceAlignment = 256;

// Where the pieces of one allocation lie.
class Layout {
 public:
  // The offset of a piece of so many bytes.
  int64_t take(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += round_up(bytes, kPieceAlignment);
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// Memory of the caller's allocator, or else of the driver's stream-ordered one, which is given back behind what is
// launched while this lives. Where the stream is being captured it is the pool's and stays with the graph: a graph with
// memory nodes cannot be part of another one, as XLA makes them, and what an allocator gives for one call may not last.
class CallMemory {
 public:
  static Result<CallMemory> of(const Driver& driver, StreamMemoryPool& pool, const DeviceAllocator& allocator,
                               const CurrentContext& context, CuStream stream, int64_t bytes);
  ~CallMemory();
  CallMemory(CallMemory&& other) noexcept
      : driver_(other.driver_),
        stream_(other.stream_),
        pointer_(other.pointer_),
        owned_(std::exchange(other.owned_, false)) {}
  CallMemory& operator=(CallMemory&&) = delete;

  CuPointer pointer() const { return pointer_; }

 private:
  CallMemory(const Driver& driver, CuStream stream) : driver_(driver), stream_(stream) {}

  const Driver& driver_;
  CuStream stream_;
  CuPointer pointer_ = 0;
  bool owned_ = false;
};

// Zeroes device memory in the order of the stream.
Status clear(const Driver& driver, CuPointer pointer, int64_t bytes, CuStream stream);

}  // namespace flashlift::cuda
