#include "cuda/launch/backward/main_sm90.h"

#include <algorithm>
#include <future>

#include "cuda/launch/backward/launch.h"
#include "cuda/launch/backward/main_sm80.h"
#include "cuda/launch/backward/tensor_maps.h"
#include "cuda/launch/sections.h"
#include "support/beside.h"
#include "support/error.h"
#include "support/rounding.h"

namespace flashlift::cuda {
namespace {

class MainSm90 : public BackwardMain {
 public:
  MainSm90(const Sm90Backward& config, const Device& device) : config_(config), device_(device) {}

  Status compile(const Problem& problem, const KernelCompiler& compile_kernel) {
    const auto begin = [&](Kernel& kernel, const Sm90BackwardKernel& config) {
      return begin_beside([&] { return kernel.compile(problem, device_, config, compile_kernel); });
    };
    std::future<Status> keys = config_.fused ? begin(fused_, *config_.fused) : begin(keys_, config_.keys);
    std::future<Status> values;
    if (config_.values && !config_.fused) {
      values = begin(values_, *config_.values);
    }
    if (config_.fallback) {
      FLASHLIFT_ASSIGN_OR_RETURN(fallback_, compile_main_sm80(problem, device_, *config_.fallback, compile_kernel));
    }
    if (config_.runs_queries()) {
      FLASHLIFT_RETURN_IF_ERROR(queries_.compile(problem, device_, config_.queries, compile_kernel));
    }
    FLASHLIFT_RETURN_IF_ERROR(keys.get());
    if (values.valid()) {
      FLASHLIFT_RETURN_IF_ERROR(values.get());
    }
    if (config_.fused) {
      FLASHLIFT_ASSIGN_OR_RETURN(round_, fused_.library->kernel("flashlift_backward_round", device_.handle, 0));
    }
    return {};
  }

  Status accepts(const BackwardCall& call) const override {
    const ForwardParams& params = call.forward;
    const int64_t blocks = std::max(query_tiles(params) * params.batch * params.q_heads,
                                    key_tiles(params) * params.batch * params.kv_heads);
    if (params.q_len == 0) {
      return unsupported("there are no queries, and its tile would read captured tensors without elements");
    }
    if (blocks > INT32_MAX / 2) {
      return unsupported("{} tiles are too many for one kernel launch; split the batch", blocks);
    }
    if (fallback_ != nullptr) {
      FLASHLIFT_RETURN_IF_ERROR(fallback_->accepts(call));
    }
    const Result<BackwardMaps> maps = encode_maps(call, call.arguments.d_out.data);
    return maps.ok() ? Status() : Status(maps.error());
  }

  Status launch(BackwardCall& call, CuPointer workspace) const override {
    FLASHLIFT_ASSIGN_OR_RETURN(BackwardMaps maps, encode_maps(call, call.backward.d_out));
    ForwardParams& params = call.forward;
    params.q_map = maps.q;
    params.k_map = maps.k;
    params.v_map = maps.v;
    params.q_tiles = static_cast<int>(query_tiles(params));
    params.total_tiles = params.q_tiles * params.batch * params.q_heads;
    call.backward.kv_tiles = static_cast<int>(key_tiles(params));
    const ForwardConfig& config = config_.queries.config;
    const int64_t row_bytes = (config.head_dim + config.value_dim) * static_cast<int64_t>(size_in_bytes(config.dtype));
    const int64_t groups = int64_t{params.batch} * params.kv_heads;
    // `length`: of what comes as columns.
    const auto sections = [&](int64_t length, int64_t blocks, const ForwardConfig& with) {
      const HeadGroups heads{.groups = groups, .bytes = length * row_bytes, .blocks = blocks};
      return static_cast<int>(groups_per_section(heads, with, device_) * params.group);
    };
    const auto run = [&](const Kernel& kernel, int64_t blocks, const ForwardConfig& with) {
      void* parameters[] = {&call.forward, &call.backward, &call.row_tiles, &maps.d_out};
      const Grid grid{.x = static_cast<unsigned>(blocks), .threads = with.threads, .shared_bytes = with.shared_bytes};
      return cuda::launch(call, kernel.kernel, grid, parameters);
    };
    // A block takes one tile of rows after the other.
    const auto resident = [&](int64_t tiles) { return std::min(tiles, int64_t{device_.multiprocessors}); };
    const auto run_queries = [&] {
      params.heads_per_section = sections(params.kv_len, query_tiles(params) * params.group, config);
      return run(queries_, resident(params.total_tiles), config);
    };
    const auto in_clusters = [&](int64_t tiles) {
      return 2 * std::min(tiles, int64_t{std::max(device_.multiprocessors / 2, 1)});
    };
    const auto run_keys = [&](const Kernel& kernel, const ForwardConfig& with) {
      params.heads_per_section = sections(int64_t{params.q_len} * params.group, key_tiles(params), with);
      const int64_t tiles = groups * key_tiles(params);
      return run(kernel, config_.keys.roles ? in_clusters(tiles) : resident(tiles), with);
    };
    CuPointer rest = workspace;
    if (config_.fused) {
      call.row_tiles.d_q_sums = reinterpret_cast<float*>(workspace);
      const int64_t heads = int64_t{params.batch} * params.q_heads;
      rest += static_cast<CuPointer>(heads * fused_sum_bytes(*config_.fused, params.q_len));
      order_key_tiles(call);
      // Its K and V are rows; those of other kernels may be columns.
      const int columns = config_.fused->row_box_columns;
      if (columns != kSm90BoxColumns) {
        FLASHLIFT_ASSIGN_OR_RETURN(params.k_map, encode_rows(call, call.arguments.forward.k, columns));
        FLASHLIFT_ASSIGN_OR_RETURN(params.v_map, encode_rows(call, call.arguments.forward.v, columns));
      }
      const int64_t tiles = groups * key_tiles(params);
      FLASHLIFT_RETURN_IF_ERROR(
          run(fused_, config_.fused->roles ? in_clusters(tiles) : resident(tiles), config_.fused->config));
      params.k_map = maps.k;
      params.v_map = maps.v;
      if (call.arguments.d_q) {
        constexpr int kRoundedTogether = 8;  // parts for one block, most of which are already stored
        const int64_t parts = heads * call.row_tiles.tiles * fused_parts(*config_.fused);
        const Grid grid{.x = static_cast<unsigned>(divide_up(parts, kRoundedTogether)), .threads = 128};
        void* parameters[] = {&call.forward, &call.backward, &call.row_tiles};
        FLASHLIFT_RETURN_IF_ERROR(cuda::launch(call, round_, grid, parameters));
        if (queries_.kernel != nullptr) {
          FLASHLIFT_RETURN_IF_ERROR(run_queries());
        }
      }
    } else {
      FLASHLIFT_RETURN_IF_ERROR(run_queries());
      if (call.arguments.d_k || (call.arguments.d_v && !config_.values)) {
        FLASHLIFT_RETURN_IF_ERROR(run_keys(keys_, config_.keys.config));
      }
      if (config_.values && call.arguments.d_v) {
        FLASHLIFT_RETURN_IF_ERROR(run_keys(values_, config_.values->config));
      }
    }
    if (fallback_ == nullptr) {
      return {};
    }
    call.backward.rows = reinterpret_cast<RowGradient*>(rest);
    call.backward.only_if[0] = call.row_tiles.any_large;
    call.backward.only_if[1] = call.backward.d_out_has_low;
    return fallback_->launch(call, rest);
  }

 private:
  struct Kernel {
    std::shared_ptr<const LoadedLibrary> library;
    CuKernel kernel = nullptr;

    Status compile(const Problem& problem, const Device& device, const Sm90BackwardKernel& config,
                   const KernelCompiler& compile_kernel) {
      FLASHLIFT_ASSIGN_OR_RETURN(library, LoadedLibrary::compile(backward_source(problem, config), compile_kernel));
      const char* name = config.fused           ? "flashlift_backward_fused"
                         : config.rows_are_keys ? "flashlift_backward_keys"
                                                : "flashlift_backward_queries";
      FLASHLIFT_ASSIGN_OR_RETURN(kernel, library->kernel(name, device.handle, config.config.shared_bytes));
      return {};
    }
  };

  // In which order the blocks of the fused kernel process key tiles, and what they do with final parts of d_q.
  void order_key_tiles(BackwardCall& call) const {
    const Sm90BackwardKernel& kernel = *config_.fused;
    ForwardParams& params = call.forward;
    const int64_t heads = int64_t{params.batch} * params.kv_heads;
    const Rings rings = choose_rings(heads, divide_up(params.q_len, kernel.config.kv_tile), key_tiles(params), kernel,
                                     device_.multiprocessors);
    call.backward.ring_tiles = rings.key_tiles;
    call.backward.ring_distance = rings.distance;
    const bool has_rings = rings.key_tiles > 1;
    const KeyOrder order = has_rings
                               ? KeyOrder{.heads = rings.heads, .mirrored = 0}
                               : choose_key_order(kernel, heads, params.group, params.q_len, params.kv_len, device_);
    params.heads_per_section = order.heads * params.group;
    call.backward.mirrored_heads = order.mirrored;
    // Consumers that store final parts are late for their ring, which costs more than to round long sums afterwards.
    constexpr int kLongQueries = 4096;
    call.backward.stores_final = call.backward.vector_d_q && !(has_rings && params.q_len >= kLongQueries);
  }

  int64_t query_tiles(const ForwardParams& params) const {
    return divide_up(params.q_len, config_.queries.config.q_tile);
  }
  int64_t key_tiles(const ForwardParams& params) const { return divide_up(params.kv_len, config_.keys.config.q_tile); }

  Sm90Backward config_;
  Device device_;
  Kernel fused_;
  CuKernel round_ = nullptr;  // of the fused kernel's sums
  Kernel queries_;
  Kernel keys_;
  Kernel values_;
  std::unique_ptr<const BackwardMain> fallback_;  // or null
};

}  // namespace

Result<std::unique_ptr<const BackwardMain>> compile_main_sm90(const Problem& problem, const Device& device,
                                                              const Sm90Backward& config,
                                                              const KernelCompiler& compile_kernel) {
  auto main = std::make_unique<MainSm90>(config, device);
  FLASHLIFT_RETURN_IF_ERROR(main->compile(problem, compile_kernel));
  return std::unique_ptr<const BackwardMain>(std::move(main));
}

}  // namespace flashlift::cuda
