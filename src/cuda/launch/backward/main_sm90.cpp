#include "cuda/launch/backward/main_sm90.h"

#include <algorithm>
#include <future>

#include "cuda/launch/backward/launch.h"
#include "cuda/launch/sections.h"
#include "cuda/launch/tensor_map.h"
#include "support/error.h"

namespace flashlift::cuda {
namespace {

constexpr int kBoxRows = 64;  // of a bulk copy, in both kernels

class MainSm90 : public BackwardMain {
 public:
  MainSm90(const Sm90Backward& config, const Device& device) : config_(config), device_(device) {}

  Status compile(const Problem& problem, const KernelCompiler& compile_kernel) {
    const BackwardSources sources = backward_sources(problem, config_);
    auto keys = std::async([&] { return LoadedLibrary::compile(sources.keys, compile_kernel); });
    Result<std::shared_ptr<const LoadedLibrary>> queries = LoadedLibrary::compile(sources.queries, compile_kernel);
    FLASHLIFT_ASSIGN_OR_RETURN(key_library_, keys.get());
    FLASHLIFT_ASSIGN_OR_RETURN(query_library_, std::move(queries));
    FLASHLIFT_ASSIGN_OR_RETURN(
        queries_, query_library_->kernel("flashlift_backward_queries", device_.handle, config_.queries.shared_bytes));
    FLASHLIFT_ASSIGN_OR_RETURN(
        keys_, key_library_->kernel("flashlift_backward_keys", device_.handle, config_.keys.shared_bytes));
    return {};
  }

  Status accepts(const BackwardCall& call) const override {
    const ForwardParams& params = call.forward;
    const int64_t blocks = std::max(query_tiles(params) * params.batch * params.q_heads,
                                    key_tiles(params) * params.batch * params.kv_heads);
    if (blocks > INT32_MAX / 2) {
      return unsupported("{} tiles are more than one launch numbers; split the batch", blocks);
    }
    return encode_maps(call).ok() ? Status() : Status(encode_maps(call).error());
  }

  Status launch(BackwardCall& call, CuPointer /*workspace*/) const override {
    FLASHLIFT_ASSIGN_OR_RETURN(Maps maps, encode_maps(call));
    ForwardParams& params = call.forward;
    params.q_map = maps.q;
    params.k_map = maps.k;
    params.v_map = maps.v;
    params.q_tiles = static_cast<int>(query_tiles(params));
    params.total_tiles = params.q_tiles * params.batch * params.q_heads;
    call.backward.kv_tiles = static_cast<int>(key_tiles(params));
    const int64_t row_bytes =
        (config_.keys.head_dim + config_.keys.value_dim) * static_cast<int64_t>(size_in_bytes(config_.keys.dtype));
    const int64_t groups = int64_t{params.batch} * params.kv_heads;
    void* parameters[] = {&call.forward, &call.backward, &call.row_tiles, &maps.d_out};
    const auto in_sections = [&](int64_t length, int64_t blocks, const ForwardConfig& config) {
      const HeadGroups heads{.groups = groups, .bytes = length * row_bytes, .blocks = blocks};
      params.heads_per_section = static_cast<int>(groups_per_section(heads, config, device_) * params.group);
      return Grid{
          .x = static_cast<unsigned>(groups * blocks), .threads = config.threads, .shared_bytes = config.shared_bytes};
    };
    const Grid queries = in_sections(params.kv_len, query_tiles(params) * params.group, config_.queries);
    FLASHLIFT_RETURN_IF_ERROR(cuda::launch(call, queries_, queries, parameters));
    if (!call.arguments.d_k && !call.arguments.d_v) {
      return {};
    }
    const Grid keys = in_sections(int64_t{params.q_len} * params.group, key_tiles(params), config_.keys);
    return cuda::launch(call, keys_, keys, parameters);
  }

 private:
  struct Maps {
    TensorMap q, k, v, d_out;
  };

  int64_t query_tiles(const ForwardParams& params) const { return divide_up(params.q_len, config_.queries.q_tile); }
  int64_t key_tiles(const ForwardParams& params) const { return divide_up(params.kv_len, config_.keys.q_tile); }

  Result<Maps> encode_maps(const BackwardCall& call) const {
    const AttentionArguments& forward = call.arguments.forward;
    // What has no elements is never read, but a descriptor needs a tensor.
    const auto encode = [&](const TensorView& view) {
      return encode_tensor_map(call.driver, view.element_count() == 0 ? forward.q : view, kBoxRows);
    };
    Maps maps;
    FLASHLIFT_ASSIGN_OR_RETURN(maps.q, encode(forward.q));
    FLASHLIFT_ASSIGN_OR_RETURN(maps.k, encode(forward.k));
    FLASHLIFT_ASSIGN_OR_RETURN(maps.v, encode(forward.v));
    FLASHLIFT_ASSIGN_OR_RETURN(maps.d_out, encode(call.arguments.d_out));
    return maps;
  }

  Sm90Backward config_;
  Device device_;
  std::shared_ptr<const LoadedLibrary> query_library_;
  std::shared_ptr<const LoadedLibrary> key_library_;
  CuKernel queries_ = nullptr;
  CuKernel keys_ = nullptr;
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
