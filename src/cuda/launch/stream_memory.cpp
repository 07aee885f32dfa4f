#include "cuda/launch/stream_memory.h"

namespace flashlift::cuda {
namespace {

constexpr int64_t kSchedulerBytes = 2 * sizeof(int32_t);

}  // namespace

StreamMemoryPool::~StreamMemoryPool() {
  // A context that is gone has freed its memory; the driver then answers with an error, which changes nothing.
  for (const CuPointer pointer : allocations_) {
    driver_.cuMemFree(pointer);
  }
}

// Allocating is not part of the work being captured, so it must not be refused because some stream is capturing.
Status StreamMemoryPool::allocate(CuPointer& pointer, int64_t bytes) {
  int mode = kCaptureRelaxed;
  driver_.cuThreadExchangeStreamCaptureMode(&mode);
  const Status status = driver_.check(driver_.cuMemAlloc(&pointer, static_cast<size_t>(bytes)), "cuMemAlloc");
  driver_.cuThreadExchangeStreamCaptureMode(&mode);
  if (status.ok()) {
    allocations_.push_back(pointer);
  }
  return status;
}

Status StreamMemoryPool::create(CuStream stream, int64_t bounds_bytes, StreamMemory& memory) {
  if (memory.scheduler == 0) {
    FLASHLIFT_RETURN_IF_ERROR(allocate(memory.scheduler, kSchedulerBytes));
    // On the caller's stream, so ordered before the launch; in a graph it becomes a node.
    FLASHLIFT_RETURN_IF_ERROR(
        driver_.check(driver_.cuMemsetD8Async(memory.scheduler, 0, kSchedulerBytes, stream), "cuMemsetD8Async"));
  }
  if (memory.bounds_bytes < bounds_bytes) {
    // The old memory stays until the pool goes: an earlier launch may still read it.
    FLASHLIFT_RETURN_IF_ERROR(allocate(memory.bounds, bounds_bytes));
    memory.bounds_bytes = bounds_bytes;
  }
  return {};
}

Result<StreamMemory> StreamMemoryPool::get(CuStream stream, int64_t bounds_bytes) {
  int capturing = 0;
  FLASHLIFT_RETURN_IF_ERROR(driver_.check(driver_.cuStreamIsCapturing(stream, &capturing), "cuStreamIsCapturing"));
  const std::lock_guard lock(mutex_);
  if (capturing != 0) {
    StreamMemory memory;
    FLASHLIFT_RETURN_IF_ERROR(create(stream, bounds_bytes, memory));
    return memory;
  }
  Key key{};
  CuContext context = nullptr;
  unsigned long long id = 0;
  FLASHLIFT_RETURN_IF_ERROR(driver_.check(driver_.cuCtxGetCurrent(&context), "cuCtxGetCurrent"));
  FLASHLIFT_RETURN_IF_ERROR(driver_.check(driver_.cuCtxGetId(context, &id), "cuCtxGetId"));
  key.context = id;
  // An id, not the handle: a destroyed stream's handle can come back while its last launch still runs.
  FLASHLIFT_RETURN_IF_ERROR(driver_.check(driver_.cuStreamGetId(stream, &id), "cuStreamGetId"));
  key.stream = id;
  StreamMemory& memory = streams_[key];
  FLASHLIFT_RETURN_IF_ERROR(create(stream, bounds_bytes, memory));
  return memory;
}

}  // namespace flashlift::cuda
