// The tiles of the portable backward kernels.
#include <algorithm>
#include <span>

#include "cuda/emit/backward_choices.h"
#include "support/error.h"
#include "support/rounding.h"

namespace flashlift::cuda {
namespace {

constexpr int64_t kRowGradientBytes = 16;
constexpr int64_t kReservedBytes = 1024;  // of each block's shared memory, used by the driver

struct Tiles {
  int rows, columns, stages;  // rows: processed by a block; columns: loaded at a time
};

int64_t shared_bytes(const ForwardConfig& config) {
  const auto element = static_cast<int64_t>(size_in_bytes(config.dtype));
  const int64_t row = (config.head_dim_padded + config.value_dim_padded) * element + 32;
  const int64_t products = config.dtype == DType::kF32 ? config.q_tile * (config.kv_tile * element + 16) : 0;
  return (config.q_tile + config.stages * config.kv_tile) * row + config.stages * config.kv_tile * kRowGradientBytes +
         products;
}

int64_t nothing_more(const ForwardConfig& /*config*/) { return 0; }

// The first of the tiles that fit.
Status choose_tiles(std::span<const Tiles> choices, int64_t available, const MoreSharedBytes& more,
                    ForwardConfig& config) {
  for (const Tiles& tiles : choices) {
    config.q_tile = tiles.rows;
    config.kv_tile = tiles.columns;
    config.stages = tiles.stages;
    config.threads = 2 * tiles.rows;
    config.shared_bytes = shared_bytes(config) + more(config);
    if (config.shared_bytes <= available) {
      return {};
    }
  }
  return unsupported("it needs {} bytes of shared memory, more than the {} that a block may have", config.shared_bytes,
                     available);
}

// In the order of preference, as measured on an H100 (docs/lessons).
constexpr Tiles kQueryTiles[] = {{64, 64, 2}, {64, 32, 2}, {64, 32, 1}, {32, 32, 2},
                                 {32, 32, 1}, {32, 16, 1}, {16, 16, 1}};
constexpr Tiles kNarrowKeyTiles[] = {{64, 64, 2}, {64, 32, 2}, {32, 32, 2}, {32, 16, 1}, {16, 16, 1}};
constexpr Tiles kKeyTiles[] = {{64, 64, 1}, {64, 32, 1}, {32, 32, 2}, {32, 32, 1}, {32, 16, 1}, {16, 16, 1}};
// With wide rows, a multiprocessor has room for only one block, which should be large.
constexpr Tiles kWideTiles[] = {{128, 64, 1}, {64, 32, 2}, {64, 32, 1}, {32, 32, 2},
                                {32, 32, 1},  {32, 16, 1}, {16, 16, 1}};

// The shared memory of a block: all of it for wide rows, otherwise half of it, so that a multiprocessor runs two
// blocks.
int64_t available_bytes(const ForwardConfig& config, bool wide) {
  const bool large = config.architecture == 90 || config.architecture == 100;
  if (!large || config.dtype == DType::kF32) {
    return kPortableSharedBytes;
  }
  return wide ? kHopperSharedBytes : kHopperSharedBytes / 2 - kReservedBytes;
}

// The fused kernel's tiles, in the order of preference (measured on an H100 and an H200: docs/lessons). Each has enough
// warps to keep the sums of its keys in registers. Two stages save one barrier for each tile.
struct FusedTiles {
  int queries, keys, warps;
  int q_stages, d_out_stages;
  int blocks;
  int narrowest, widest;  // the narrowest and widest rows for these tiles
  bool dropout = true;    // whether they are for problems with dropout, too
  // False: only for a mask that follows from positions, and no score_mod. Other problems visit more tiles that are
  // full, or need more registers.
  bool any_mods = true;
};
constexpr FusedTiles kFusedTiles[] = {{128, 128, 8, 2, 2, 1, 1, 96},  {128, 128, 8, 2, 1, 1, 97, 128, false, false},
                                      {64, 128, 8, 2, 2, 1, 65, 128}, {64, 64, 4, 1, 1, 2, 1, 96},
                                      {64, 64, 4, 1, 1, 1, 1, 128},   {128, 64, 8, 2, 1, 1, 129, 192, false},
                                      {64, 64, 8, 2, 2, 1, 129, 256}, {64, 64, 8, 1, 1, 1, 129, 256},
                                      {64, 32, 4, 1, 1, 1, 129, 256}};

int64_t fused_shared_bytes(const Sm80FusedKernel& kernel) {
  const ForwardConfig& config = kernel.config;
  constexpr int64_t kVisitBytes = 256;
  const int64_t q = int64_t{2} * config.stages * config.head_dim_padded;
  const int64_t d_out = int64_t{2} * kernel.d_out_stages * config.value_dim_padded;
  const int64_t keys = int64_t{2} * (config.head_dim_padded + config.value_dim_padded);
  return config.kv_tile * keys + config.q_tile * (q + d_out) + int64_t{2} * 2 * config.q_tile * config.kv_tile +
         kVisitBytes;
}

// Why the fused kernel does not take the problem.
Status refuse_fused(const Problem& problem) {
  if (problem.dtype == DType::kF32) {
    return unsupported("its matrix products take bf16 and f16 only, and Flashlift does not round f32 inputs silently");
  }
  if (!problem.want_lse) {
    return unsupported("it reads the row sums from lse; compile the problem with `lse`");
  }
  if (!keeps_exact_output(problem)) {
    return unsupported("{}", kRoundedOutput);
  }
  if (problem.page_size > 0) {
    return unsupported("it does not support paged keys and values");
  }
  if (problem.empty_rows == EmptyRows::kUniform) {
    return unsupported("it does not spread the gradients of rows without keys over all values");
  }
  return {};
}

Result<Sm80FusedKernel> choose_sm80_fused(const Problem& problem, int architecture) {
  FLASHLIFT_RETURN_IF_ERROR(refuse_fused(problem));
  Sm80FusedKernel kernel;
  ForwardConfig& config = kernel.config;
  config = common_config(problem);
  config.kind = KernelKind::kPortable;
  config.architecture = architecture;
  config.fragments = 2;
  for (const FusedTiles& tiles : kFusedTiles) {
    // The warps that share the columns of a sum have 16 at a time. Four warps may have 8 of the last 32.
    constexpr int kWarpRows = 32;
    constexpr int64_t kLastColumns = 32;
    const int column_warps = std::max(tiles.warps * kWarpRows / tiles.keys, tiles.warps * kWarpRows / tiles.queries);
    const auto padded = [&](int64_t dim) {
      return static_cast<int>(std::max(round_up(dim, kLastColumns), int64_t{16} * column_warps));
    };
    config.head_dim_padded = padded(problem.head_dim);
    config.value_dim_padded = padded(problem.value_dim);
    config.q_tile = tiles.queries;
    config.kv_tile = tiles.keys;
    config.threads = 32 * tiles.warps;
    config.stages = tiles.q_stages;
    kernel.d_out_stages = tiles.d_out_stages;
    config.blocks = tiles.blocks;
    config.shared_bytes = fused_shared_bytes(kernel);
    const int widest = std::max(config.head_dim, config.value_dim);
    if (widest >= tiles.narrowest && widest <= tiles.widest && (tiles.dropout || !config.dropout) &&
        (tiles.any_mods || (config.has_mask_mod && !problem.score_mod && problem.captures.empty())) &&
        tiles.blocks * (config.shared_bytes + kReservedBytes) <= shared_memory(architecture)) {
      kernel.has_fallback = needs_fallback(problem);
      return kernel;
    }
  }
  return unsupported("rows of {} and {} columns fit neither registers nor {} bytes of shared memory", problem.head_dim,
                     problem.value_dim, shared_memory(architecture) - kReservedBytes);
}

}  // namespace

int64_t diagonal_bytes(const ForwardConfig& config) {
  constexpr int64_t kPadding = 8;
  return config.q_tile / 2 * (config.kv_tile + kPadding) * static_cast<int64_t>(sizeof(float));
}

Status choose_query_tiles(const MoreSharedBytes& more, ForwardConfig& config) {
  using Choices = std::span<const Tiles>;
  const bool wide = std::max(config.head_dim, config.value_dim) > kMostColumns;
  return choose_tiles(wide ? Choices(kWideTiles) : Choices(kQueryTiles), available_bytes(config, wide), more, config);
}

Result<Sm80Backward> choose_sm80_apart(const Problem& problem, int architecture) {
  Sm80Backward config;
  config.queries = common_config(problem);
  config.queries.kind = KernelKind::kPortable;
  config.queries.architecture = architecture;
  config.keys = config.queries;
  const int widest = std::max(config.keys.head_dim, config.keys.value_dim);
  config.chunks = static_cast<int>(divide_up(widest, kMostColumns));
  const auto padded = [&](int dim) {
    return static_cast<int>(config.chunks * round_up(divide_up(dim, config.chunks), 16));
  };
  config.keys.head_dim_padded = padded(config.keys.head_dim);
  config.keys.value_dim_padded = padded(config.keys.value_dim);
  FLASHLIFT_RETURN_IF_ERROR(choose_query_tiles(nothing_more, config.queries));
  const bool wide = widest > kMostColumns;
  using Choices = std::span<const Tiles>;
  const Choices key_tiles = wide ? Choices(kWideTiles) : widest <= 64 ? Choices(kNarrowKeyTiles) : Choices(kKeyTiles);
  FLASHLIFT_RETURN_IF_ERROR(choose_tiles(key_tiles, available_bytes(config.keys, wide), nothing_more, config.keys));
  return config;
}

Result<Sm80Backward> choose_sm80_backward(const Problem& problem, int architecture) {
  FLASHLIFT_ASSIGN_OR_RETURN(Sm80Backward config, choose_sm80_apart(problem, architecture));
  if (const Result<Sm80FusedKernel> fused = choose_sm80_fused(problem, architecture); fused.ok()) {
    config.fused = *fused;
  } else {
    config.not_fused = fused.error().message;
  }
  return config;
}

int64_t fused_sum_bytes(const Sm80FusedKernel& fused, int64_t q_len) {
  const ForwardConfig& config = fused.config;
  const int64_t tiles = divide_up(q_len, config.q_tile) + 1;  // one more, for rows that do not exist
  return tiles * config.q_tile * config.head_dim_padded * static_cast<int64_t>(sizeof(float));
}

}  // namespace flashlift::cuda
