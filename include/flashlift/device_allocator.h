// GPU memory from the caller's allocator.
#pragma once

#include <cstddef>

namespace flashlift {

// The source of a call's temporary GPU memory, such as a framework's caching allocator.
struct DeviceAllocator {
  // Returns at least `bytes` bytes on the attention's device, at a multiple of 256; null if there is no memory. The
  // memory must stay valid until the work that the call puts on its stream is done. A stream-ordered allocator may
  // therefore reuse it as soon as the call has returned. Called at most once per call, and not while the stream is
  // being captured.
  void* (*allocate)(void* context, size_t bytes) = nullptr;  // null: the driver's own pool
  void* context = nullptr;
};

}  // namespace flashlift
