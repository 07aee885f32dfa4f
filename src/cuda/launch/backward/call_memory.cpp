#include "cuda/launch/backward/call_memory.h"

#include "support/error.h"

namespace flashlift::cuda {
namespace {

Result<CuPointer> take_from(const DeviceAllocator& allocator, int64_t bytes) {
  const auto pointer =
      reinterpret_cast<CuPointer>(allocator.allocate(allocator.context, static_cast<size_t>(bytes)));  // NOLINT
  if (pointer == 0) {
    return internal_error("the caller's allocator has no {} bytes of GPU memory for the backward pass", bytes);
  }
  if (pointer % kPieceAlignment != 0) {
    return invalid_argument("the caller's allocator gave memory at {:#x}, expected a multiple of {}", pointer,
                            kPieceAlignment);
  }
  return pointer;
}

}  // namespace

Result<CallMemory> CallMemory::of(const Driver& driver, StreamMemoryPool& pool, const DeviceAllocator& allocator,
                                  const CurrentContext& context, CuStream stream, int64_t bytes) {
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
  if (allocator.allocate != nullptr) {
    FLASHLIFT_ASSIGN_OR_RETURN(memory.pointer_, take_from(allocator, bytes));
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
