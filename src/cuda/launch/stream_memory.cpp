#include "cuda/launch/stream_memory.h"

#include <algorithm>
#include <utility>

namespace flashlift::cuda {
namespace {

constexpr int64_t kPieceAlignment = 256;
constexpr int64_t kChunkBytes = 64 * 1024;

}  // namespace

StreamMemoryPool::~StreamMemoryPool() {
  // A context that is gone has freed its memory; the driver then answers with an error, which changes nothing.
  for (const CuPointer pointer : allocations_) {
    driver_.cuMemFree(pointer);
  }
}

// On a stream of its own and waited for: the caller's may be capturing, and what it captures runs again and again.
Result<CuPointer> StreamMemoryPool::allocate_zeroed(int64_t bytes) const {
  CuPointer pointer = 0;
  FLASHLIFT_RETURN_IF_ERROR(driver_.check(driver_.cuMemAlloc(&pointer, static_cast<size_t>(bytes)), "cuMemAlloc"));
  CuStream stream = nullptr;
  CuResult result = driver_.cuStreamCreate(&stream, kStreamNonBlocking);
  if (result == 0) {
    result = driver_.cuMemsetD8Async(pointer, 0, static_cast<size_t>(bytes), stream);
    const CuResult finished = driver_.cuStreamSynchronize(stream);
    result = result == 0 ? finished : result;
    driver_.cuStreamDestroy(stream);
  }
  if (result != 0) {
    driver_.cuMemFree(pointer);
    return driver_.check(result, "cuMemsetD8Async").error();
  }
  return pointer;
}

Result<CuPointer> StreamMemoryPool::cut(uint64_t context, int64_t bytes) {
  bytes = (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  Chunk& chunk = chunks_[context];
  if (chunk.left < bytes) {
    const int64_t size = std::max(bytes, kChunkBytes);
    // Allocating is not part of work being captured, so it must not be refused because some stream is capturing.
    int mode = kCaptureRelaxed;
    driver_.cuThreadExchangeStreamCaptureMode(&mode);
    const Result<CuPointer> memory = allocate_zeroed(size);
    driver_.cuThreadExchangeStreamCaptureMode(&mode);
    if (!memory.ok()) {
      return memory.error();
    }
    allocations_.push_back(*memory);
    chunk = {*memory, size};
  }
  const CuPointer piece = chunk.begin;
  chunk.begin += static_cast<CuPointer>(bytes);
  chunk.left -= bytes;
  return piece;
}

// Pieces that became too small stay until the pool goes: an earlier launch may still use them.
Status StreamMemoryPool::enlarge(uint64_t context, int64_t counter_bytes, int64_t scratch_bytes, StreamMemory& memory) {
  if (memory.counter_bytes < counter_bytes) {
    FLASHLIFT_ASSIGN_OR_RETURN(memory.counters, cut(context, counter_bytes));
    memory.counter_bytes = counter_bytes;
  }
  if (memory.scratch_bytes < scratch_bytes) {
    FLASHLIFT_ASSIGN_OR_RETURN(memory.scratch, cut(context, scratch_bytes));
    memory.scratch_bytes = scratch_bytes;
  }
  return {};
}

// Called by the driver when no graph that the memory was captured into is left, nor runs.
void StreamMemoryPool::give_back(void* held) {
  const std::unique_ptr<HeldByGraph> memory(static_cast<HeldByGraph*>(held));
  if (const std::shared_ptr<Returned> home = memory->home.lock()) {
    const std::lock_guard lock(home->mutex);
    home->memory[memory->context].push_back(memory->memory);
  }
}

// The first that is large enough, or the last one, to be enlarged.
StreamMemory StreamMemoryPool::take_returned(uint64_t context, int64_t counter_bytes, int64_t scratch_bytes) {
  const std::lock_guard lock(returned_->mutex);
  std::vector<StreamMemory>& returned = returned_->memory[context];
  if (returned.empty()) {
    return {};
  }
  auto found = std::ranges::find_if(returned, [&](const StreamMemory& memory) {
    return memory.counter_bytes >= counter_bytes && memory.scratch_bytes >= scratch_bytes;
  });
  found = found == returned.end() ? found - 1 : found;
  std::swap(*found, returned.back());
  const StreamMemory memory = returned.back();
  returned.pop_back();
  return memory;
}

// Memory nodes of the graph would do, too, but a graph that has them cannot be part of another one, as XLA makes them.
Status StreamMemoryPool::leave_to_graph(CuStream stream, uint64_t context, const StreamMemory& memory) const {
  int status = 0;
  CuGraph graph = nullptr;
  FLASHLIFT_RETURN_IF_ERROR(driver_.check(
      driver_.cuStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr), "cuStreamGetCaptureInfo"));
  HeldByGraph* const held = std::make_unique<HeldByGraph>(returned_, context, memory).release();  // until give_back()
  CuUserObject object = nullptr;
  Status created =
      driver_.check(driver_.cuUserObjectCreate(&object, held, give_back, 1, kNoDestructorSync), "cuUserObjectCreate");
  if (!created.ok()) {
    give_back(held);
    return created;
  }
  Status retained =
      driver_.check(driver_.cuGraphRetainUserObject(graph, object, 1, kRetainMove), "cuGraphRetainUserObject");
  if (!retained.ok()) {
    driver_.cuUserObjectRelease(object, 1);
  }
  return retained;
}

Result<StreamMemory> StreamMemoryPool::get(const CurrentContext& context, CuStream stream, int64_t counter_bytes,
                                           int64_t scratch_bytes) {
  int capturing = 0;
  FLASHLIFT_RETURN_IF_ERROR(driver_.check(driver_.cuStreamIsCapturing(stream, &capturing), "cuStreamIsCapturing"));
  const std::lock_guard lock(mutex_);
  if (capturing != 0) {
    StreamMemory memory = take_returned(context.id(), counter_bytes, scratch_bytes);
    FLASHLIFT_RETURN_IF_ERROR(enlarge(context.id(), counter_bytes, scratch_bytes, memory));
    FLASHLIFT_RETURN_IF_ERROR(leave_to_graph(stream, context.id(), memory));
    return memory;
  }
  // An id, not the handle: a destroyed stream's handle can come back while its last launch still runs.
  unsigned long long stream_id = 0;
  FLASHLIFT_RETURN_IF_ERROR(driver_.check(driver_.cuStreamGetId(stream, &stream_id), "cuStreamGetId"));
  StreamMemory& memory = streams_[Key{context.id(), stream_id}];
  FLASHLIFT_RETURN_IF_ERROR(enlarge(context.id(), counter_bytes, scratch_bytes, memory));
  return memory;
}

}  // namespace flashlift::cuda
