#include "cuda/launch/backward/main_sm80.h"

#include <algorithm>
#include <future>
#include <utility>

#include "cuda/launch/backward/launch.h"
#include "cuda/launch/loaded_kernel.h"
#include "cuda/launch/sections.h"
#include "support/beside.h"
#include "support/error.h"

namespace flashlift::cuda {
namespace {

// All gradients from one kernel.
class Fused {
 public:
  Status compile(const Problem& problem, const Device& device, const Sm80FusedKernel& config,
                 const KernelCompiler& compile_kernel) {
    config_ = config;
    FLASHLIFT_ASSIGN_OR_RETURN(library_, LoadedLibrary::compile(backward_source(problem, config), compile_kernel));
    FLASHLIFT_ASSIGN_OR_RETURN(fused_,
                               library_->kernel("flashlift_backward_fused", device.handle, config.config.shared_bytes));
    FLASHLIFT_ASSIGN_OR_RETURN(round_, library_->kernel("flashlift_backward_round", device.handle, 0));
    return {};
  }

  int64_t blocks(const ForwardParams& params) const {
    return divide_up(params.kv_len, config_.config.kv_tile) * params.batch * params.kv_heads;
  }

  // Sets `workspace` to the remaining workspace.
  Status launch(BackwardCall& call, CuPointer& workspace) const {
    ForwardParams& params = call.forward;
    const int64_t heads = int64_t{params.batch} * params.q_heads;
    call.row_tiles.d_q_sums = reinterpret_cast<float*>(workspace);
    workspace += static_cast<CuPointer>(heads * fused_sum_bytes(config_, params.q_len));
    params.heads_per_section = alternating_heads(config_, params.q_len) * params.group;
    call.backward.kv_tiles = static_cast<int>(divide_up(params.kv_len, config_.config.kv_tile));
    void* parameters[] = {&call.forward, &call.backward, &call.row_tiles};
    const Grid grid{.x = static_cast<unsigned>(blocks(params)),
                    .threads = config_.config.threads,
                    .shared_bytes = config_.config.shared_bytes};
    FLASHLIFT_RETURN_IF_ERROR(cuda::launch(call, fused_, grid, parameters));
    const Grid tiles{.x = static_cast<unsigned>(heads * call.row_tiles.tiles), .threads = config_.config.threads};
    return call.arguments.d_q ? cuda::launch(call, round_, tiles, parameters) : Status();
  }

 private:
  Sm80FusedKernel config_;
  std::shared_ptr<const LoadedLibrary> library_;
  CuKernel fused_ = nullptr;
  CuKernel round_ = nullptr;
};

class MainSm80 : public BackwardMain {
 public:
  explicit MainSm80(const Sm80Backward& config) : config_(config) {}

  Status compile(const Problem& problem, const Device& device, const KernelCompiler& compile_kernel) {
    std::future<Status> fused;
    if (config_.fused) {
      fused = begin_beside([&] { return fused_.compile(problem, device, *config_.fused, compile_kernel); });
    }
    Status apart = config_.runs_apart() ? compile_apart(problem, device, compile_kernel) : Status();
    Status compiled_fused = fused.valid() ? fused.get() : Status();
    return apart.ok() ? std::move(compiled_fused) : std::move(apart);
  }

  Status accepts(const BackwardCall& call) const override {
    int64_t blocks = std::max(query_blocks(call.forward), key_blocks(call.forward));
    if (config_.fused) {
      blocks = std::max(blocks, fused_.blocks(call.forward));
    }
    return blocks > INT32_MAX / 2 ? unsupported("{} tiles are too many for one kernel launch; split the batch", blocks)
                                  : Status();
  }

  Status launch(BackwardCall& call, CuPointer workspace) const override {
    if (config_.fused) {
      FLASHLIFT_RETURN_IF_ERROR(fused_.launch(call, workspace));
      if (!config_.fused->has_fallback) {
        return {};
      }
      call.backward.rows = reinterpret_cast<RowGradient*>(workspace);
      call.backward.only_if[0] = call.row_tiles.any_large;
      call.backward.only_if[1] = call.backward.d_out_has_low;
    }
    return launch_apart(call);
  }

 private:
  Status compile_apart(const Problem& problem, const Device& device, const KernelCompiler& compile_kernel) {
    const Sm80BackwardSources sources = backward_sources(problem, config_);
    auto keys = begin_beside([&] { return LoadedLibrary::compile(sources.keys, compile_kernel); });
    Result<std::shared_ptr<const LoadedLibrary>> queries = LoadedLibrary::compile(sources.queries, compile_kernel);
    FLASHLIFT_ASSIGN_OR_RETURN(key_library_, keys.get());
    FLASHLIFT_ASSIGN_OR_RETURN(query_library_, std::move(queries));
    const int64_t shared = config_.queries.shared_bytes;
    FLASHLIFT_ASSIGN_OR_RETURN(rows_, query_library_->kernel("flashlift_backward_rows", device.handle, shared));
    FLASHLIFT_ASSIGN_OR_RETURN(queries_, query_library_->kernel("flashlift_backward_queries", device.handle, shared));
    FLASHLIFT_ASSIGN_OR_RETURN(
        keys_, key_library_->kernel("flashlift_backward_keys", device.handle, config_.keys.shared_bytes));
    return {};
  }

  Status launch_apart(BackwardCall& call) const {
    ForwardParams& params = call.forward;
    params.q_tiles = static_cast<int>(divide_up(params.q_len, config_.queries.q_tile));
    params.total_tiles = static_cast<int>(query_blocks(params));
    params.heads_per_section = params.group;  // heads that share keys stay together
    call.backward.kv_tiles = static_cast<int>(divide_up(params.kv_len, config_.keys.q_tile));
    void* parameters[] = {&call.forward, &call.backward};
    const Grid queries{.x = static_cast<unsigned>(query_blocks(params)),
                       .threads = config_.queries.threads,
                       .shared_bytes = config_.queries.shared_bytes};
    const Grid keys{.x = static_cast<unsigned>(key_blocks(params)),
                    .y = static_cast<unsigned>(config_.chunks),
                    .threads = config_.keys.threads,
                    .shared_bytes = config_.keys.shared_bytes};
    FLASHLIFT_RETURN_IF_ERROR(cuda::launch(call, rows_, queries, parameters));
    if (call.arguments.d_q) {
      FLASHLIFT_RETURN_IF_ERROR(cuda::launch(call, queries_, queries, parameters));
    }
    const bool wants_keys = call.arguments.d_k || call.arguments.d_v;
    return wants_keys ? cuda::launch(call, keys_, keys, parameters) : Status();
  }

  int64_t query_blocks(const ForwardParams& params) const {
    return divide_up(params.q_len, config_.queries.q_tile) * params.batch * params.q_heads;
  }
  int64_t key_blocks(const ForwardParams& params) const {
    return divide_up(params.kv_len, config_.keys.q_tile) * params.batch * params.kv_heads;
  }

  Sm80Backward config_;
  Fused fused_;
  std::shared_ptr<const LoadedLibrary> query_library_;
  std::shared_ptr<const LoadedLibrary> key_library_;
  CuKernel rows_ = nullptr;
  CuKernel queries_ = nullptr;
  CuKernel keys_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<const BackwardMain>> compile_main_sm80(const Problem& problem, const Device& device,
                                                              const Sm80Backward& config,
                                                              const KernelCompiler& compile_kernel) {
  auto main = std::make_unique<MainSm80>(config);
  FLASHLIFT_RETURN_IF_ERROR(main->compile(problem, device, compile_kernel));
  return std::unique_ptr<const BackwardMain>(std::move(main));
}

}  // namespace flashlift::cuda
