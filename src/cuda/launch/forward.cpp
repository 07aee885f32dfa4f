#include "cuda/launch/forward.h"

#include <algorithm>
#include <cmath>

#include "cuda/emit/kernel_source.h"
#include "cuda/emit/program_emitter.h"
#include "cuda/kernels/forward_params.h"
#include "cuda/launch/loaded_kernel.h"
#include "cuda/launch/stream_memory.h"
#include "cuda/launch/tensor_map.h"
#include "problem/sinks.h"
#include "support/error.h"
#include "support/rounding.h"

namespace flashlift::cuda {
namespace {

constexpr int kBoundsThreads = 256;
constexpr int64_t kBoundsEntryBytes = 2 * sizeof(int64_t);
constexpr int64_t kHopperCounters = 2;
constexpr int64_t kFloatBytes = sizeof(float);

Strides strides_of(const TensorView& view) {
  return {view.strides[0], view.strides[1], view.strides[2], view.strides[3]};
}

// How many heads to schedule together: as many as have their keys and values in the L2 cache, in sections of equal
// size, since a small last section would leave multiprocessors idle at the end. Heads that share keys stay together.
// Where no query tile is longer than another, one head after the other is better: keys and values then come from memory
// evenly, and not all at the beginning of a section. (Not seen for narrow heads: docs/lessons.md.)
int heads_per_section(const ForwardParams& params, const ForwardConfig& config, int64_t l2_bytes) {
  constexpr int kNarrow = 64;
  if (!config.has_mask_mod && std::max(config.head_dim, config.value_dim) > kNarrow) {
    return params.group;
  }
  const int64_t bytes =
      int64_t{params.kv_len} * (config.head_dim + config.value_dim) * static_cast<int64_t>(size_in_bytes(config.dtype));
  const int64_t groups = int64_t{params.batch} * params.kv_heads;
  const int64_t fitting = std::max<int64_t>(l2_bytes / std::max<int64_t>(bytes, 1), 1);
  const int64_t sections = divide_up(groups, fitting);
  return static_cast<int>(divide_up(groups, sections) * params.group);
}

Result<ForwardConfig> choose_config(const Problem& problem, KernelKind kind, int architecture) {
  switch (kind) {
    case KernelKind::kDecode:
      return choose_decode_config(problem, architecture);
    case KernelKind::kHopper:
      return choose_hopper_config(problem);
    case KernelKind::kPortable:
      break;
  }
  return choose_portable_config(problem, architecture);
}

// Among how many blocks the keys of a unit are divided: enough to fill all multiprocessors, no more than have work, and
// so that the last wave of blocks is as full as can be. More of them means more to put together.
int choose_splits(int64_t units, int64_t tiles, int64_t slots) {
  constexpr int64_t kLeastTiles = 2;  // of a split
  constexpr int64_t kMostSplits = 128;
  constexpr double kGoodEnough = 0.96;
  const int64_t most = std::clamp<int64_t>(tiles / kLeastTiles, 1, kMostSplits);
  const auto efficiency = [&](int64_t splits) {
    const double waves = static_cast<double>(units * splits) / static_cast<double>(slots);
    return waves / std::ceil(waves);
  };
  double best = 0;
  for (int64_t splits = 1; splits <= most; ++splits) {
    best = std::max(best, efficiency(splits));
  }
  int64_t splits = 1;
  while (splits < most && efficiency(splits) < kGoodEnough * best) {
    ++splits;
  }
  return static_cast<int>(splits);
}

// Rows that 16-byte copies can read.
bool has_vector_rows(const TensorView& view) {
  const auto chunk = static_cast<int64_t>(16 / size_in_bytes(view.dtype));
  bool fits = reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.sizes[3] % chunk == 0 && view.strides[3] == 1;
  for (int d = 0; d < 3; ++d) {
    fits = fits && (view.sizes[d] <= 1 || view.strides[d] % chunk == 0);
  }
  return fits;
}

// Blocks of a tensor that share bounds: those of kernels/capture_bounds.cuh.
int64_t block_count(const CaptureArgument& capture, int rank, int block_rows) {
  int64_t blocks = 1;
  for (int d = 0; d < rank; ++d) {
    const int64_t block = d + 1 == rank ? kCaptureBlock : d + 2 == rank ? block_rows : 1;
    blocks *= divide_up(capture.sizes[d], block);
  }
  return blocks;
}

Status fill_captures(const std::vector<TensorView>& views, ForwardParams& params) {
  const int least = params.kv_len > 0 ? 1 : 0;  // without keys no program is run
  for (size_t i = 0; i < views.size(); ++i) {
    CaptureArgument& capture = params.captures[i];
    capture.data = views[i].data;
    capture.bounds = nullptr;
    for (int d = 0; d < views[i].rank; ++d) {
      if (views[i].sizes[d] > INT32_MAX || views[i].sizes[d] < least) {
        return unsupported("captured tensor {} has dimension {} of size {}, expected {} to {}", i, d, views[i].sizes[d],
                           least, INT32_MAX);
      }
      if (d + 1 == views[i].rank && (views[i].strides[d] > INT32_MAX || views[i].strides[d] < INT32_MIN)) {
        return unsupported("the last dimension of captured tensor {} has a stride of {} elements, expected 32 bits", i,
                           views[i].strides[d]);
      }
      // (A search counts the elements, even if they are one.)
      const bool shared = views[i].rank > 1 && views[i].strides[d] == 0;
      capture.sizes[d] = static_cast<int>(shared ? std::min<int64_t>(views[i].sizes[d], 1) : views[i].sizes[d]);
      capture.strides[d] = views[i].strides[d];
    }
  }
  return {};
}

// The kernel that finds a captured tensor's bounds before the forward kernel runs.
struct BoundsPass {
  BoundedCapture capture;
  CuKernel kernel = nullptr;
};

}  // namespace

struct Forward::State {
  State(const Driver& d, const Device& on) : driver(d), device(on), memory(d) {}

  Status prepare(const AttentionArguments& arguments, ForwardParams& params) const;
  Status encode_maps(const AttentionArguments& arguments, ForwardParams& params) const;
  Status compute_bounds(ForwardParams& params, CuPointer memory_of_bounds, CuStream stream) const;
  int64_t bounds_blocks(const BoundsPass& pass, const ForwardParams& params) const;
  int64_t bounds_bytes(const ForwardParams& params) const;
  int64_t partial_bytes(const ForwardParams& params) const;

  const Driver& driver;
  Device device;
  Problem problem;
  ForwardConfig config;
  std::string code;
  std::shared_ptr<const LoadedLibrary> library;
  CuKernel kernel = nullptr;
  std::vector<BoundsPass> bounds_passes;
  mutable StreamMemoryPool memory;
};

const ForwardConfig& Forward::config() const { return state_->config; }
const std::string& Forward::code() const { return state_->code; }

Result<Forward> Forward::compile(const Problem& problem, const Device& device, KernelKind kind,
                                 const KernelCompiler& compile_kernel) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Driver* driver, Driver::get());
  auto state = std::make_shared<State>(*driver, device);
  state->problem = problem;
  FLASHLIFT_ASSIGN_OR_RETURN(state->config, choose_config(problem, kind, device.architecture));
  const KernelSource source = forward_source(problem, state->config);
  state->code = emit_programs(problem);
  FLASHLIFT_ASSIGN_OR_RETURN(const auto cubin, compile_kernel(source));
  FLASHLIFT_ASSIGN_OR_RETURN(state->library, LoadedLibrary::load(*driver, *cubin));
  FLASHLIFT_ASSIGN_OR_RETURN(state->kernel,
                             state->library->kernel("flashlift_forward", device.handle, state->config.shared_bytes));
  for (const BoundedCapture& capture : bounded_captures(problem)) {
    const std::string name = fmt::format("flashlift_bounds_{}", capture.index);
    FLASHLIFT_ASSIGN_OR_RETURN(CuKernel kernel, state->library->kernel(name, device.handle, 0));
    state->bounds_passes.push_back({capture, kernel});
  }
  return Forward(std::move(state));
}

Status Forward::State::prepare(const AttentionArguments& arguments, ForwardParams& params) const {
  params.q = arguments.q.data;
  params.k = arguments.k.data;
  params.v = arguments.v.data;
  params.out = arguments.out.data;
  params.lse = arguments.lse ? static_cast<float*>(arguments.lse->data) : nullptr;
  params.row_max = arguments.row_max ? static_cast<float*>(arguments.row_max->data) : nullptr;
  params.page_table = arguments.page_table ? static_cast<const int*>(arguments.page_table->data) : nullptr;
  params.sinks = arguments.sinks ? static_cast<const float*>(arguments.sinks->data) : nullptr;
  params.q_strides = strides_of(arguments.q);
  params.k_strides = strides_of(arguments.k);
  params.v_strides = strides_of(arguments.v);
  params.out_strides = strides_of(arguments.out);
  for (int d = 0; d < 3; ++d) {
    params.lse_strides[d] = arguments.lse ? arguments.lse->strides[d] : 0;
    params.row_max_strides[d] = arguments.row_max ? arguments.row_max->strides[d] : 0;
  }
  if (arguments.sinks) {
    params.sink_strides[0] = problem::sink_offset(*arguments.sinks, 1, 0);
    params.sink_strides[1] = problem::sink_offset(*arguments.sinks, 0, 1);
  }
  for (int d = 0; d < 2; ++d) {
    params.page_table_strides[d] = arguments.page_table ? arguments.page_table->strides[d] : 0;
  }
  params.zero = 0;
  params.pages = static_cast<int>(arguments.k.sizes[0]);
  const double rate = problem.dropout;
  params.dropout_seed[0] = static_cast<uint32_t>(arguments.dropout_seed);
  params.dropout_seed[1] = static_cast<uint32_t>(arguments.dropout_seed >> 32);
  params.dropout_threshold = static_cast<uint32_t>(std::llround(std::ldexp(rate, 32)));
  params.dropout_factor = static_cast<float>(1.0 / (1.0 - rate));
  params.scale = problem.scale;
  params.batch = static_cast<int>(arguments.q.sizes[0]);
  params.q_heads = static_cast<int>(problem.q_heads);
  params.kv_heads = static_cast<int>(problem.kv_heads);
  params.group = params.q_heads / params.kv_heads;
  params.q_len = static_cast<int>(arguments.q.sizes[2]);
  params.kv_len = static_cast<int>(kv_length(problem, arguments));
  params.sinks_per_head = static_cast<int>(problem.sinks);
  const bool decode = config.kind == KernelKind::kDecode;  // its tiles are of all rows that share keys
  const int64_t rows = int64_t{params.q_len} * (decode ? params.group : 1);
  params.q_tiles = static_cast<int>(divide_up(rows, config.q_tile));
  int64_t total = int64_t{params.q_tiles} * params.batch * (decode ? params.kv_heads : params.q_heads);
  if (decode) {
    const int64_t slots = device.multiprocessors * std::max<int64_t>(device.shared_bytes / config.shared_bytes, 1);
    params.splits = choose_splits(total, divide_up(params.kv_len, config.kv_tile), slots);
    total *= params.splits;
  }
  if (total > INT32_MAX / 2) {
    return unsupported("{} query tiles are more than one launch numbers; split the batch", total);
  }
  params.total_tiles = static_cast<int>(total);
  params.vector_q = has_vector_rows(arguments.q);
  params.vector_k = has_vector_rows(arguments.k);
  params.vector_v = has_vector_rows(arguments.v);
  params.heads_per_section = heads_per_section(params, config, device.l2_bytes);
  FLASHLIFT_RETURN_IF_ERROR(fill_captures(arguments.captures, params));
  return config.kind == KernelKind::kHopper ? encode_maps(arguments, params) : Status();
}

Status Forward::State::encode_maps(const AttentionArguments& arguments, ForwardParams& params) const {
  const TensorView& out = arguments.out;
  if (config.vector_output) {
    bool aligned = reinterpret_cast<uintptr_t>(out.data) % 16 == 0 && (out.strides[3] == 1 || out.sizes[3] == 1);
    for (int d = 0; d < 3; ++d) {
      aligned = aligned && (out.sizes[d] == 1 || out.strides[d] % 8 == 0);
    }
    if (!aligned) {
      return unsupported("the output {} does not consist of contiguous rows at multiples of 16 bytes", describe(out));
    }
  }
  TensorView k = arguments.k;
  TensorView v = arguments.v;
  if (k.element_count() == 0) {  // never read, but a descriptor needs a tensor
    k = v = arguments.q;
  }
  constexpr int kWarpgroupRows = 64;
  FLASHLIFT_ASSIGN_OR_RETURN(params.q_map, encode_tensor_map(driver, arguments.q, kWarpgroupRows));
  const int keys = config.page_size > 0 ? config.page_piece : config.kv_tile;
  FLASHLIFT_ASSIGN_OR_RETURN(params.k_map, encode_tensor_map(driver, k, keys));
  FLASHLIFT_ASSIGN_OR_RETURN(params.v_map, encode_tensor_map(driver, v, keys));
  return {};
}

int64_t Forward::State::partial_bytes(const ForwardParams& params) const {
  constexpr int64_t kPadding = 8;  // floats of a row: see kernels/sm80_decode.cu
  const bool split = config.kind == KernelKind::kDecode && params.splits > 1;
  return split ? int64_t{params.total_tiles} * config.q_tile * (config.value_dim_padded + kPadding) * kFloatBytes : 0;
}

// 0 where they are not worth computing: of a tensor with an element for each score, or for those of few heads only, the
// pass would take a good part of the time that the products take, which skipped tiles can save.
int64_t Forward::State::bounds_blocks(const BoundsPass& pass, const ForwardParams& params) const {
  constexpr int64_t kProductsPerByte = 256;
  const CaptureArgument& capture = params.captures[pass.capture.index];
  const Capture& declared = problem.captures[pass.capture.index];
  const auto rank = static_cast<int>(declared.shape.size());
  if (pass.capture.rows > 1) {
    auto bytes = static_cast<int64_t>(size_in_bytes(declared.dtype));
    for (int d = 0; d < rank; ++d) {
      bytes *= capture.sizes[d];
    }
    const int64_t scores = int64_t{params.batch} * params.q_heads * params.q_len * params.kv_len;
    if (bytes > scores / kProductsPerByte * (config.head_dim + config.value_dim)) {
      return 0;
    }
  }
  return block_count(capture, rank, pass.capture.rows);
}

int64_t Forward::State::bounds_bytes(const ForwardParams& params) const {
  int64_t bytes = 0;
  for (const BoundsPass& pass : bounds_passes) {
    bytes += bounds_blocks(pass, params) * kBoundsEntryBytes;
  }
  return bytes;
}

Status Forward::State::compute_bounds(ForwardParams& params, CuPointer memory_of_bounds, CuStream stream) const {
  for (const BoundsPass& pass : bounds_passes) {
    long long blocks = bounds_blocks(pass, params);
    if (blocks == 0) {
      continue;
    }
    CuPointer bounds = memory_of_bounds;
    memory_of_bounds += static_cast<CuPointer>(blocks * kBoundsEntryBytes);
    CaptureArgument& capture = params.captures[pass.capture.index];
    void* parameters[] = {&capture, &bounds, &blocks};
    const auto grid = static_cast<unsigned>(
        std::clamp<int64_t>(divide_up(blocks, kBoundsThreads / 32), 1, 4 * int64_t{device.multiprocessors}));
    FLASHLIFT_RETURN_IF_ERROR(driver.check(
        driver.cuLaunchKernel(pass.kernel, grid, 1, 1, kBoundsThreads, 1, 1, 0, stream, parameters, nullptr),
        "cuLaunchKernel"));
    capture.bounds = reinterpret_cast<const void*>(bounds);
  }
  return {};
}

Status Forward::run(const AttentionArguments& arguments, CuStream stream) const {
  const State& state = *state_;
  if (arguments.out.element_count() == 0) {
    return {};
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const CurrentContext context,
                             CurrentContext::of(state.driver, stream, state.device.handle));
  ForwardParams params;  // not cleared: the kernel reads only what prepare() sets
  FLASHLIFT_RETURN_IF_ERROR(state.prepare(arguments, params));
  const ForwardConfig& config = state.config;
  const int64_t partial_bytes = state.partial_bytes(params);
  const int64_t counters = config.kind == KernelKind::kDecode ? params.total_tiles / params.splits : kHopperCounters;
  FLASHLIFT_ASSIGN_OR_RETURN(const StreamMemory memory,
                             state.memory.get(stream, counters * static_cast<int64_t>(sizeof(int32_t)),
                                              partial_bytes + state.bounds_bytes(params)));
  params.counters = reinterpret_cast<int*>(memory.counters);
  params.partials = reinterpret_cast<float*>(memory.scratch);
  const CuPointer bounds = memory.scratch + static_cast<CuPointer>(partial_bytes);
  FLASHLIFT_RETURN_IF_ERROR(state.compute_bounds(params, bounds, stream));
  void* parameters[] = {&params};
  const int grid = config.kind == KernelKind::kHopper ? std::min(params.total_tiles, state.device.multiprocessors)
                                                      : params.total_tiles;
  return state.driver.check(state.driver.cuLaunchKernel(
                                state.kernel, static_cast<unsigned>(grid), 1, 1, static_cast<unsigned>(config.threads),
                                1, 1, static_cast<unsigned>(config.shared_bytes), stream, parameters, nullptr),
                            "cuLaunchKernel");
}

}  // namespace flashlift::cuda
