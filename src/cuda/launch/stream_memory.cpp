#include "cuda/launch/stream_memory.h"

#include <algorithm>
#include <utility>

namespace flashlift::cuda {
namespace {

constexpr int64_t kPieceAlignment = 256;
constexpr int64_t kChunkBytes = 64 * 1024;

}  // namespace

StreamMemoryPool::~StreamMemoryPool() {
  // If a context was destroyed, its memory is already free, and the driver returns an error that can be ignored.
  for (const CuPointer pointer : allocations_) {
    driver_.cuMemFree(pointer);
  }
}

// Clears the memory on a stream of its own, and waits for it: the caller's stream may be capturing, and would clear it
// again in each replay.
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
    // The driver would refuse to allocate while some stream is capturing, although the allocation is not part of the
    // graph.
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

// Pieces that became too small are kept until the pool is destroyed, because an earlier launch may still use them.
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

// The driver calls this when the last graph that captured the memory is destroyed and no longer runs.
void StreamMemoryPool::give_back(void* held) {
  const std::unique_ptr<HeldByGraph> memory(static_cast<HeldByGraph*>(held));
  if (const std::shared_ptr<Returned> home = memory->home.lock()) {
    const std::lock_guard lock(home->mutex);
    home->memory[memory->context].push_back(memory->memory);
  }
}

// The first piece that is large enough; otherwise the last one, which the caller enlarges.
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

// Memory nodes would also work, but a graph with memory nodes cannot be part of another graph, as XLA uses them.
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
  // The id instead of the handle: a new stream may get a destroyed stream's handle while its last launch still runs.
  unsigned long long stream_id = 0;
  FLASHLIFT_RETURN_IF_ERROR(driver_.check(driver_.cuStreamGetId(stream, &stream_id), "cuStreamGetId"));
  StreamMemory& memory = streams_[Key{context.id(), stream_id}];
  FLASHLIFT_RETURN_IF_ERROR(enlarge(context.id(), counter_bytes, scratch_bytes, memory));
  return memory;
}

}  // namespace flashlift::cuda
