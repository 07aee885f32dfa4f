#include "cuda/launch/backward/main.h"

#include "cuda/launch/backward/main_sm80.h"
#include "cuda/launch/backward/main_sm90.h"

namespace flashlift::cuda {
namespace {

// One overload of each for a family.
RowStatistics statistics_of(const Sm80Backward& config) {
  if (config.fused) {
    return {.tile = config.fused->config.q_tile,
            .from_output = true,
            .parts = 1,
            .asks_for_large = config.fused->has_fallback};
  }
  return {.tile = 0, .from_output = false};  // the rows kernel decides itself what it takes from the output
}

RowStatistics statistics_of(const Sm90Backward& config) {
  const Sm90BackwardKernel& kernel = config.fused ? *config.fused : config.keys;
  return {.tile = kernel.config.kv_tile,
          .from_output = true,
          .parts = config.fused ? fused_parts(*config.fused) : 0,
          .asks_for_large = config.fallback.has_value(),
          .ring_keys = config.fused && config.fused->rings ? kernel.config.q_tile : 0};
}

int64_t row_gradient_bytes(const ForwardParams& params) {
  return int64_t{params.batch} * params.q_heads * params.q_len * static_cast<int64_t>(sizeof(RowGradient));
}

int64_t bytes_of(const Sm80Backward& config, const Device& /*device*/, const ForwardParams& params) {
  if (!config.fused) {
    return 0;  // all sums stay in registers
  }
  return int64_t{params.batch} * params.q_heads * fused_sum_bytes(*config.fused, params.q_len) +
         (config.fused->has_fallback ? row_gradient_bytes(params) : 0);
}

int64_t bytes_of(const Sm90Backward& config, const Device& /*device*/, const ForwardParams& params) {
  const int64_t heads = int64_t{params.batch} * params.q_heads;
  const int64_t rows = config.fallback ? row_gradient_bytes(params) : 0;
  return rows + (config.fused ? heads * fused_sum_bytes(*config.fused, params.q_len) : 0);
}

auto compile_family(const Sm80Backward& config, const Problem& problem, const Device& device,
                    const KernelCompiler& compile_kernel) {
  return compile_main_sm80(problem, device, config, compile_kernel);
}

auto compile_family(const Sm90Backward& config, const Problem& problem, const Device& device,
                    const KernelCompiler& compile_kernel) {
  return compile_main_sm90(problem, device, config, compile_kernel);
}

}  // namespace

RowStatistics row_statistics(const BackwardConfig& config) {
  return std::visit([](const auto& family) { return statistics_of(family); }, config);
}

int64_t main_workspace_bytes(const BackwardConfig& config, const Device& device, const ForwardParams& params) {
  return std::visit([&](const auto& family) { return bytes_of(family, device, params); }, config);
}

Result<std::unique_ptr<const BackwardMain>> compile_main(const Problem& problem, const Device& device,
                                                         const BackwardConfig& config,
                                                         const KernelCompiler& compile_kernel) {
  return std::visit([&](const auto& family) { return compile_family(family, problem, device, compile_kernel); },
                    config);
}

}  // namespace flashlift::cuda
