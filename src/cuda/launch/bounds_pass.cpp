#include "cuda/launch/bounds_pass.h"

#include <algorithm>

#include "support/error.h"
#include "support/rounding.h"

namespace flashlift::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kEntryBytes = 2 * sizeof(int64_t);

// The number of a tensor's blocks with common bounds, as in kernels/common/capture_bounds.cuh.
int64_t block_count(const CaptureArgument& capture, int rank, int block_rows) {
  int64_t blocks = 1;
  for (int d = 0; d < rank; ++d) {
    const int64_t block = d + 1 == rank ? kCaptureBlock : d + 2 == rank ? block_rows : 1;
    blocks *= divide_up(capture.sizes[d], block);
  }
  return blocks;
}

}  // namespace

BoundsPasses::BoundsPasses(const Problem& problem, const Device& device)
    : products_per_score_(problem.head_dim + problem.value_dim), device_(device) {
  for (const BoundedCapture& capture : bounded_captures(problem)) {
    passes_.push_back({capture, problem.captures[capture.index]});
  }
}

Status BoundsPasses::load(const LoadedLibrary& library) {
  if (!passes_.empty()) {
    FLASHLIFT_ASSIGN_OR_RETURN(kernel_, library.kernel("flashlift_bounds", device_.handle, 0));
  }
  return {};
}

// The number of blocks, or 0 if their bounds are not worth computing. For a tensor with an element for each score, or
// one that few heads read, the pass would take a large part of the products' time, and skipped tiles save no more than
// that.
int64_t BoundsPasses::blocks(const Pass& pass, const ForwardParams& params) const {
  constexpr int64_t kProductsPerByte = 256;
  const CaptureArgument& capture = params.captures[pass.capture.index];
  const auto rank = static_cast<int>(pass.declared.shape.size());
  if (pass.capture.rows > 1) {
    auto bytes = static_cast<int64_t>(size_in_bytes(pass.declared.dtype));
    for (int d = 0; d < rank; ++d) {
      bytes *= capture.sizes[d];
    }
    const int64_t scores = int64_t{params.batch} * params.q_heads * params.q_len * params.kv_len;
    if (bytes > scores / kProductsPerByte * products_per_score_) {
      return 0;
    }
  }
  return block_count(capture, rank, pass.capture.rows);
}

int64_t BoundsPasses::bytes(const ForwardParams& params) const {
  int64_t bytes = 0;
  for (const Pass& pass : passes_) {
    bytes += blocks(pass, params) * kEntryBytes;
  }
  return bytes;
}

void* BoundsPasses::place(ForwardParams& params, CuPointer memory, std::vector<BoundsArgument>& arguments) const {
  bool any = false;
  for (const Pass& pass : passes_) {
    CaptureArgument& capture = params.captures[pass.capture.index];
    const int64_t count = blocks(pass, params);
    arguments.push_back({.capture = capture, .bounds = reinterpret_cast<void*>(memory), .blocks = count});
    if (count > 0) {
      capture.bounds = reinterpret_cast<const void*>(memory);
      memory += static_cast<CuPointer>(count * kEntryBytes);
      any = true;
    }
  }
  return any ? arguments.data() : nullptr;
}

Status BoundsPasses::launch(const Driver& driver, ForwardParams& params, CuPointer memory, CuStream stream) const {
  std::vector<BoundsArgument> arguments;
  void* parameters[] = {place(params, memory, arguments)};
  if (parameters[0] == nullptr) {
    return {};
  }
  int64_t most = 0;
  for (const BoundsArgument& one : arguments) {
    most = std::max<int64_t>(most, one.blocks);
  }
  const auto grid = static_cast<unsigned>(
      std::clamp<int64_t>(divide_up(most, kThreads / 32), 1, 4 * int64_t{device_.multiprocessors}));
  return driver.check(driver.cuLaunchKernel(kernel_, grid, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr),
                      "cuLaunchKernel");
}

}  // namespace flashlift::cuda
