#include "cuda/launch/backward/call_memory.h"

namespace flashlift::cuda {

Result<CallMemory> CallMemory::of(const Driver& driver, StreamMemoryPool& pool, const CurrentContext& context,
                                  CuStream stream, int64_t bytes) {
  CallMemory memory(driver, stream);
  if (bytes == 0) {
    return memory;
  }
  int capturing = 0;
  FLASHLIFT_RETURN_IF_ERROR(driver.check(driver.cuStreamIsCapturing(stream, &capturing), "cuStreamIsCapturing"));
  if (capturing != 0) {
    FLASHLIFT_ASSIGN_OR_RETURN(const StreamMemory held, pool.get(context, stream, 0, bytes));
    memory.pointer_ = held.scratch;
    return memory;
  }
  FLASHLIFT_RETURN_IF_ERROR(
      driver.check(driver.cuMemAllocAsync(&memory.pointer_, static_cast<size_t>(bytes), stream), "cuMemAllocAsync"));
  memory.owned_ = true;
  return memory;
}

CallMemory::~CallMemory() {
  if (owned_) {
    driver_.cuMemFreeAsync(pointer_, stream_);
  }
}

Status clear(const Driver& driver, CuPointer pointer, int64_t bytes, CuStream stream) {
  return bytes == 0
             ? Status()
             : driver.check(driver.cuMemsetD8Async(pointer, 0, static_cast<size_t>(bytes), stream), "cuMemsetD8Async");
}

}  // namespace flashlift::cuda
