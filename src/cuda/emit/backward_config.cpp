#include "cuda/emit/backward_config.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cuda/emit/backward_choices.h"
#include "cuda/emit/motion.h"
#include "support/error.h"

namespace flashlift::cuda {
namespace {

// The shared memory of the portable kernel's tables (kernels/common/block_sums.cuh): as much as its tiles of 128
// columns leave where a block may have 99 KiB.
constexpr int64_t kSm80TableBytes = 24 << 10;

// Whether the program may add so large a number to all scores of a row that its lse, in f32, cannot represent their
// differences. A tensor element read for a query or a key is often a mask with such numbers; one read for a head is
// usually a factor.
bool may_add_much(const Program& score_mod) {
  constexpr float kMuch = 1024.0f;
  const Motion motion(score_mod);
  for (size_t i = 0; i < score_mod.nodes.size(); ++i) {
    const Node& node = score_mod.nodes[i];
    if (node.type != Type::kF32) {
      continue;
    }
    if (reads_capture(node.op) && (motion.q[i] || motion.kv[i])) {
      return true;
    }
    if (node.op == Op::k_constant && !(std::fabs(std::bit_cast<float>(static_cast<uint32_t>(node.payload))) <= kMuch)) {
      return true;
    }
  }
  return false;
}

std::string describe_kernel(const Sm90BackwardKernel& kernel) {
  const ForwardConfig& config = kernel.config;
  return fmt::format("{}x{} tiles, {} and {} stages, {} KiB shared", config.q_tile, config.kv_tile, config.stages,
                     kernel.v_stages, config.shared_bytes / 1024);
}

std::string describe_family(const Sm90Backward& config) {
  if (config.fused) {
    return "sm_90a, fused " + describe_kernel(*config.fused) + (config.fused->ordered ? "" : ", d_q in any order");
  }
  return fmt::format("sm_90a, queries {}; keys {}", describe_kernel(config.queries), describe_kernel(config.keys)) +
         (config.values ? fmt::format("; values {}", describe_kernel(*config.values)) : "") +
         "; not one kernel: " + config.not_fused;
}

std::string describe_family(const Sm80Backward& config) {
  if (config.fused) {
    return "fused " + describe(config.fused->config);
  }
  return fmt::format("queries {}; keys {}, columns in {} parts; not one kernel: {}", describe(config.queries),
                     describe(config.keys), config.chunks, config.not_fused);
}

// Are the preprocess's statistics of rows exact? Only fused kernels take <d_out, out> from an output that is not
// rounded.
bool has_exact_row_tiles(const Sm80Backward& config) { return config.fused.has_value(); }
bool has_exact_row_tiles(const Sm90Backward& config) { return config.fused.has_value(); }

bool has_fallback(const Sm80Backward& config) { return config.fused && config.fused->has_fallback; }
bool has_fallback(const Sm90Backward& config) { return config.fallback.has_value(); }

// Loops that search need scores in local memory, where products cannot write them.
bool searches(const Problem& problem) {
  const auto in = [](const std::optional<Program>& program) {
    return program && std::ranges::find(program->nodes, Op::k_search, &Node::op) != program->nodes.end();
  };
  return in(problem.score_mod) || in(problem.mask_mod);
}

}  // namespace

bool hides_empty_rows(const Problem& problem) {
  return problem.empty_rows == EmptyRows::kNan && problem.score_mod && may_mask(*problem.score_mod);
}

bool needs_fallback(const Problem& problem) {
  return problem.d_out_dtype() != problem.dtype || hides_empty_rows(problem) ||
         (problem.score_mod && may_add_much(*problem.score_mod));
}

int64_t bytes_of_table(int64_t bytes, int tables) {
  constexpr int64_t kAlignment = 16;
  return tables == 0 ? 0 : bytes / tables / kAlignment * kAlignment;
}

bool reads_residual(const Sm80Backward& config) { return config.fused.has_value(); }
// Without the sum that corrects <d_out, out>, the kernel for queries repeats the tiles where it is not exact.
bool reads_residual(const Sm90Backward& config) { return config.fused.has_value() || !config.queries.sums_first; }

bool has_row_tiles(const Sm80Backward& config) { return config.fused.has_value(); }
bool has_row_tiles(const Sm90Backward& /*config*/) { return true; }

int architecture_of(const Sm80Backward& config) { return config.queries.architecture; }
int architecture_of(const Sm90Backward& config) { return config.queries.config.architecture; }

const char* to_string(BackwardKind kind) {
  switch (kind) {
    case BackwardKind::kHopper:
      return "cuda_sm90";
    case BackwardKind::kPortable:
      return "cuda_sm80";
  }
  return "?";
}

Result<BackwardConfig> choose_backward_config(const Problem& problem, BackwardKind kind, int architecture) {
  switch (kind) {
    case BackwardKind::kHopper: {
      FLASHLIFT_ASSIGN_OR_RETURN(Sm90Backward config, choose_sm90_backward(problem));
      return BackwardConfig(config);
    }
    case BackwardKind::kPortable:
      break;
  }
  FLASHLIFT_ASSIGN_OR_RETURN(Sm80Backward config, choose_sm80_backward(problem, architecture));
  return BackwardConfig(config);
}

Result<CaptureConfig> choose_capture_config(const Problem& problem, const BackwardConfig& main,
                                            const std::vector<CaptureLoad>& loads) {
  const bool has_tiles = std::visit([](const auto& family) { return has_row_tiles(family); }, main);
  const bool exact = std::visit([](const auto& family) { return has_exact_row_tiles(family); }, main);
  CaptureConfig config;
  config.row_tiles = exact && std::ranges::none_of(loads, &CaptureLoad::cancels);
  config.has_fallback = config.row_tiles && std::visit([](const auto& family) { return has_fallback(family); }, main);
  config.makes_rows = has_tiles && (!config.row_tiles || config.has_fallback);
  config.config = common_config(problem);
  config.config.kind = KernelKind::kPortable;
  config.config.architecture = std::visit([](const auto& family) { return architecture_of(family); }, main);
  const bool has_diagonal = std::ranges::find(loads, CaptureSum::kDiagonal, &CaptureLoad::sum) != loads.end();
  const int tables = element_tables(loads);
  config.table_bytes = bytes_of_table(kSm80TableBytes, tables);
  const auto more = [&](const ForwardConfig& tiles) {
    return (has_diagonal ? diagonal_bytes(tiles) : 0) + tables * config.table_bytes;
  };
  FLASHLIFT_RETURN_IF_ERROR(choose_query_tiles(more, config.config));
  if (std::holds_alternative<Sm90Backward>(main) && problem.d_out_dtype() == problem.dtype && !searches(problem)) {
    const bool falls_back = config.has_fallback;
    config.hopper = Sm90CaptureKernels{
        .queries = sm90_kernel(
            problem,
            {.config = {}, .has_fallback = falls_back, .captures = true, .tables = tables, .diagonals = has_diagonal}),
        .keys =
            sm90_kernel(problem, {.config = {}, .rows_are_keys = true, .has_fallback = falls_back, .captures = true}),
        .planes = sm90_kernel(problem, {.config = {}, .has_fallback = falls_back, .captures = true, .planes = true})};
  }
  return config;
}

std::string describe(const BackwardConfig& config) {
  return std::visit([](const auto& family) { return describe_family(family); }, config);
}

}  // namespace flashlift::cuda
