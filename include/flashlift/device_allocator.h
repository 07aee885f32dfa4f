// Memory of a GPU that callers lend.
#pragma once

#include <cstddef>

namespace flashlift {

// Where a call takes the memory from that it needs beside its tensors, such as a framework's caching allocator.
struct DeviceAllocator {
  // At least `bytes` of the attention's device, at a multiple of 256; null where there are none. The memory must stay
  // valid until what the call puts on its stream is done, so an allocator that works in the order of the stream takes
  // it back once the call has returned. Asked at most once a call, and not while the stream is being captured.
  void* (*allocate)(void* context, size_t bytes) = nullptr;  // null: the driver's own pool
  void* context = nullptr;
};

}  // namespace flashlift
