#include "cuda/launch/forward.h"

#include <algorithm>
#include <cmath>

#include "cuda/emit/kernel_source.h"
#include "cuda/emit/program_emitter.h"
#include "cuda/kernels/common/forward_params.h"
#include "cuda/launch/bounds_pass.h"
#include "cuda/launch/params.h"
#include "cuda/launch/sections.h"
#include "cuda/launch/stream_memory.h"
#include "cuda/launch/tensor_map.h"
#include "support/error.h"
#include "support/rounding.h"

namespace flashlift::cuda {
namespace {

constexpr int64_t kHopperCounters = 2;
constexpr int64_t kFloatBytes = sizeof(float);

int heads_per_section(const ForwardParams& params, const ForwardConfig& config, const Device& device) {
  const int64_t key_bytes = (config.head_dim + config.value_dim) * static_cast<int64_t>(size_in_bytes(config.dtype));
  const HeadGroups heads{.groups = int64_t{params.batch} * params.kv_heads,
                         .bytes = params.kv_len * key_bytes,
                         .blocks = int64_t{params.q_tiles} * params.group};
  return static_cast<int>(groups_per_section(heads, config, device) * params.group);
}

// The number of blocks that share the keys of a unit: enough to fill `slots`, each with some work, and so that the last
// wave of blocks is as full as possible.
int splits_that_fill(int64_t units, int64_t tiles, int64_t slots) {
  constexpr int64_t kLeastTiles = 2;  // for each split
  constexpr double kGoodEnough = 0.96;
  const int64_t most = std::clamp<int64_t>(tiles / kLeastTiles, 1, int64_t{kMostSplits});
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

// Two blocks for each multiprocessor, which hide each other's latency. But more splits mean more partial results to
// combine: where there would be many, one block, unless pages must be found (measured on an H200:
// docs/lessons/cuda_decode.md).
int choose_splits(int64_t units, int64_t tiles, const ForwardConfig& config, const Device& device) {
  constexpr int64_t kTogether = 2;
  constexpr int kMany = 8;
  const int64_t resident =
      std::clamp(device.shared_bytes / std::max<int64_t>(config.shared_bytes, 1), int64_t{1}, kTogether);
  const int splits = splits_that_fill(units, tiles, resident * device.multiprocessors);
  return splits > kMany && config.page_size == 0 ? splits_that_fill(units, tiles, device.multiprocessors) : splits;
}

}  // namespace

struct Forward::State {
  State(const Driver& d, const Problem& of, const Device& on)
      : driver(d), device(on), problem(of), bounds(of, on), memory(d) {}

  Status prepare(const AttentionArguments& arguments, ForwardParams& params) const;
  Status divide(ForwardParams& params) const;
  Status encode_query_map(const AttentionArguments& arguments, ForwardParams& params) const;
  Status encode_key_maps(const AttentionArguments& arguments, ForwardParams& params) const;
  int64_t counter_bytes(const ForwardParams& params) const;
  int64_t partial_bytes(const ForwardParams& params) const;

  const Driver& driver;
  Device device;
  Problem problem;
  ForwardConfig config;
  std::string code;
  std::shared_ptr<const LoadedLibrary> library;
  std::unique_ptr<ContextFunctions> functions;
  BoundsPasses bounds;
  mutable StreamMemoryPool memory;
};

const ForwardConfig& Forward::config() const { return state_->config; }
const std::string& Forward::code() const { return state_->code; }

Result<Forward> Forward::compile(const Problem& problem, const Device& device, KernelKind kind, LengthClass length,
                                 const KernelCompiler& compile_kernel) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Driver* driver, Driver::get());
  auto state = std::make_shared<State>(*driver, problem, device);
  FLASHLIFT_ASSIGN_OR_RETURN(state->config, choose_forward_config(problem, kind, length, device.architecture));
  const KernelSource source = forward_source(problem, state->config);
  state->code = emit_programs(problem);
  FLASHLIFT_ASSIGN_OR_RETURN(state->library, LoadedLibrary::compile(source, compile_kernel));
  FLASHLIFT_ASSIGN_OR_RETURN(CuKernel kernel,
                             state->library->kernel("flashlift_forward", device.handle, state->config.shared_bytes));
  state->functions = std::make_unique<ContextFunctions>(*driver, kernel);
  FLASHLIFT_RETURN_IF_ERROR(state->bounds.load(*state->library));
  return Forward(std::move(state));
}

Status Forward::State::prepare(const AttentionArguments& arguments, ForwardParams& params) const {
  FLASHLIFT_RETURN_IF_ERROR(fill_params(problem, arguments, params));
  FLASHLIFT_RETURN_IF_ERROR(divide(params));
  if (config.kind == KernelKind::kHopper) {
    FLASHLIFT_RETURN_IF_ERROR(encode_query_map(arguments, params));
  }
  const bool bulk = config.kind == KernelKind::kHopper || config.kind == KernelKind::kBulkDecode;
  return bulk ? encode_key_maps(arguments, params) : Status();
}

// Divides the work into tiles, and these among blocks, by the call's lengths.
Status Forward::State::divide(ForwardParams& params) const {
  const bool decode = config.decodes();
  const int64_t rows = int64_t{params.q_len} * (decode ? params.group : 1);
  params.q_tiles = static_cast<int>(divide_up(rows, config.q_tile));
  int64_t total = int64_t{params.q_tiles} * params.batch * (decode ? params.kv_heads : params.q_heads);
  if (decode) {
    params.splits = choose_splits(total, divide_up(params.kv_len, config.kv_tile), config, device);
    total *= params.splits;
  }
  if (total > INT32_MAX / 2) {
    return unsupported("{} query tiles are too many for one kernel launch; split the batch", total);
  }
  params.total_tiles = static_cast<int>(total);
  params.heads_per_section = heads_per_section(params, config, device);
  return {};
}

Status Forward::State::encode_query_map(const AttentionArguments& arguments, ForwardParams& params) const {
  const TensorView& out = arguments.out;
  if (config.vector_output) {
    bool aligned = reinterpret_cast<uintptr_t>(out.data) % 16 == 0 && (out.strides[3] == 1 || out.sizes[3] == 1);
    for (int d = 0; d < 3; ++d) {
      aligned = aligned && (out.sizes[d] == 1 || out.strides[d] % 8 == 0);
    }
    if (!aligned) {
      return unsupported("the rows of the output {} must be contiguous and start at multiples of 16 bytes",
                         describe(out));
    }
  }
  constexpr int kWarpgroupRows = 64;
  FLASHLIFT_ASSIGN_OR_RETURN(params.q_map, encode_tensor_map(driver, arguments.q, kWarpgroupRows, kSm90BoxColumns));
  return {};
}

Status Forward::State::encode_key_maps(const AttentionArguments& arguments, ForwardParams& params) const {
  TensorView k = arguments.k;
  TensorView v = arguments.v;
  if (k.element_count() == 0) {  // never read, but a descriptor needs some tensor
    k = v = arguments.q;
  }
  const int keys = config.page_size > 0 ? config.page_piece : config.kv_tile;
  // Decoding waits for memory: that of an H100 delivers most at 256 bytes, that of an H200, with more stacks, at 128.
  constexpr int kBusOfH100 = 5120;
  const bool wide_reads = config.kind == KernelKind::kBulkDecode && device.memory_bus_bits <= kBusOfH100;
  const L2Promotion promotion = wide_reads ? L2Promotion::k256 : L2Promotion::k128;
  FLASHLIFT_ASSIGN_OR_RETURN(params.k_map, encode_tensor_map(driver, k, keys, kSm90BoxColumns, promotion));
  FLASHLIFT_ASSIGN_OR_RETURN(params.v_map, encode_tensor_map(driver, v, keys, kSm90BoxColumns, promotion));
  return {};
}

int64_t Forward::State::counter_bytes(const ForwardParams& params) const {
  const int64_t counters = config.decodes() ? params.total_tiles / params.splits : kHopperCounters;
  return counters * static_cast<int64_t>(sizeof(int32_t));
}

int64_t Forward::State::partial_bytes(const ForwardParams& params) const {
  constexpr int64_t kPadding = 8;  // floats for each row: see kernels/sm80/decode.cuh
  const bool split = config.decodes() && params.splits > 1;
  return split ? int64_t{params.total_tiles} * config.q_tile * (config.value_dim_padded + kPadding) * kFloatBytes : 0;
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
  FLASHLIFT_ASSIGN_OR_RETURN(const StreamMemory memory, state.memory.get(context, stream, state.counter_bytes(params),
                                                                         partial_bytes + state.bounds.bytes(params)));
  params.counters = reinterpret_cast<int*>(memory.counters);
  params.partials = reinterpret_cast<float*>(memory.scratch);
  const CuPointer bounds = memory.scratch + static_cast<CuPointer>(partial_bytes);
  FLASHLIFT_RETURN_IF_ERROR(state.bounds.launch(state.driver, params, bounds, stream));
  FLASHLIFT_ASSIGN_OR_RETURN(CuFunction function, state.functions->get(context));
  void* parameters[] = {&params};
  const int grid = config.kind == KernelKind::kHopper ? std::min(params.total_tiles, state.device.multiprocessors)
                                                      : params.total_tiles;
  return state.driver.check(
      state.driver.cuLaunchKernel(function, static_cast<unsigned>(grid), 1, 1, static_cast<unsigned>(config.threads), 1,
                                  1, static_cast<unsigned>(config.shared_bytes), stream, parameters, nullptr),
      "cuLaunchKernel");
}

int64_t Forward::workspace_bytes() const {
  const State& state = *state_;
  ForwardParams params;
  fill_lengths(state.problem, params);
  // Lengths that are too large for a launch need no memory: the launch fails.
  return state.divide(params).ok()
             ? state.counter_bytes(params) + state.partial_bytes(params) + state.bounds.bytes(params)
             : 0;
}

}  // namespace flashlift::cuda
