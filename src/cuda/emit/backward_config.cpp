#include "cuda/emit/backward_config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <span>

#include "cuda/emit/conditions.h"
#include "cuda/emit/motion.h"
#include "cuda/emit/program_emitter.h"
#include "support/error.h"
#include "support/rounding.h"

namespace flashlift::cuda {
namespace {

constexpr int kMostColumns = 128;  // of d_k, and of d_v, in the registers of a block
constexpr int64_t kRowGradientBytes = 16;
constexpr int64_t kReservedBytes = 1024;  // of each block's shared memory, used by the driver

constexpr int kHopper = 90;

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

// May the lse of a row be NaN although the row only has no keys (`empty_rows=nan`)? Where mask_mod leaves out its keys,
// this does no harm. Where their scores are -inf, only the scores tell the row from one whose scores are NaN.
bool hides_empty_rows(const Problem& problem) {
  return problem.empty_rows == EmptyRows::kNan && problem.score_mod && may_mask(*problem.score_mod);
}

// Whether there must be kernels that take over if some row's gradient does not follow from its lse.
bool needs_fallback(const Problem& problem) {
  return problem.d_out_dtype() != problem.dtype || hides_empty_rows(problem) ||
         (problem.score_mod && may_add_much(*problem.score_mod));
}

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

// Of what a kernel keeps in shared memory besides, for tiles of this size.
using MoreSharedBytes = std::function<int64_t(const ForwardConfig& config)>;
int64_t nothing_more(const ForwardConfig& /*config*/) { return 0; }
// The scores of a block whose diagonals are summed (kernels/sm80/backward_captures.cu).
int64_t diagonal_bytes(const ForwardConfig& config) {
  constexpr int64_t kPadding = 8;
  return config.q_tile / 2 * (config.kv_tile + kPadding) * static_cast<int64_t>(sizeof(float));
}

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

// The type in which the products read d_out.
void define_d_out(DType dtype, DType d_out_dtype, std::vector<std::string>& list) {
  const bool converts = d_out_dtype != dtype;
  list.push_back(fmt::format("-DFL_D_OUT_CONVERTED={:d}", converts));
  list.push_back(fmt::format("-DFL_D_OUT_HALVES={:d}", converts && dtype != DType::kF32));
}

std::vector<std::string> with(std::vector<std::string> list, const ForwardConfig& config, int chunks) {
  define_d_out(config.dtype, config.d_out_dtype, list);
  list.push_back(fmt::format("-DFL_D_CHUNK={}", config.head_dim_padded / chunks));
  list.push_back(fmt::format("-DFL_V_CHUNK={}", config.value_dim_padded / chunks));
  return list;
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

constexpr const char* kRoundedOutput =
    "it takes <d_out, out> from an output that is not rounded, and the problem asks for no residual";

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

// The shared memory of the portable kernel's tables (kernels/common/block_sums.cuh): as much as its tiles of 128
// columns leave where a block may have 99 KiB.
constexpr int64_t kSm80TableBytes = 24 << 10;
int64_t bytes_of_table(int64_t bytes, int tables) {
  constexpr int64_t kAlignment = 16;
  return tables == 0 ? 0 : bytes / tables / kAlignment * kAlignment;
}

constexpr int64_t kSm90Bookkeeping = 640;       // barriers and the like
constexpr int64_t kSm90RolesBookkeeping = 128;  // in addition

// Of a part of d_q: 64 queries.
int64_t part_bytes(const Sm90BackwardKernel& fused) {
  constexpr int64_t kQueries = 64;
  return kQueries * fused.part_columns * static_cast<int64_t>(sizeof(float));
}

int64_t sm90_shared_bytes(const Sm90BackwardKernel& kernel) {
  constexpr int64_t kStatisticBytes = 8;  // of a query
  const ForwardConfig& config = kernel.config;
  const int64_t qk_row = 2 * round_up(config.head_dim_padded, 64);
  const int64_t v_row = 2 * round_up(config.value_dim_padded, 64);
  const int64_t own_qk_row = kernel.row_box_columns == kSm90BoxColumns ? qk_row : 2 * kFusedParts * kernel.part_columns;
  const int64_t own_v_row = 2 * round_up(config.value_dim_padded, kernel.row_box_columns);
  if (kernel.planes) {  // rows are loaded with each column tile
    constexpr int64_t kStageBookkeeping = 32;
    const int64_t stage = (config.q_tile + config.kv_tile) * (qk_row + v_row) + kStageBookkeeping;
    return config.stages * stage + kSm90Bookkeeping;
  }
  // d_s, and parts of d_q, two of each. (By roles a block has one part, and the other block's keys for it.)
  const int64_t parts =
      kernel.roles ? part_bytes(kernel) + 2 * 64 * kernel.part_columns : kFusedParts * part_bytes(kernel);
  const int64_t fused =
      kernel.fused ? 2 * 2 * config.q_tile * config.kv_tile + parts + (kernel.roles ? kSm90RolesBookkeeping : 0) : 0;
  const bool reads_v = kernel.sums_second || kernel.captures;
  const bool of_rows = !kernel.rows_are_keys && !kernel.captures;
  const int64_t row_statistics = of_rows ? config.q_tile * kStatisticBytes : 0;
  const int64_t column_statistics = of_rows ? 0 : kStatisticBytes;
  const int64_t rows = kernel.roles ? config.q_tile / 2 : config.q_tile;
  const int64_t exchange = kernel.roles ? (kernel.fused ? 1 : 2) * 2 * 64 * config.kv_tile : 0;
  return rows * (own_qk_row + (reads_v ? own_v_row : 0)) + exchange +
         config.kv_tile * (config.stages * (qk_row + column_statistics) + kernel.v_stages * v_row) + fused +
         row_statistics + (kernel.diagonals ? diagonal_bytes(config) : 0) + kernel.tables * kernel.table_bytes +
         kSm90Bookkeeping;
}

// How the two warpgroups of the fused kernel share d_q: halves of 128 queries, or of the columns. K's boxes are narrow
// where half of the columns are not whole wide boxes or half of one.
void choose_parts(Sm90BackwardKernel& kernel) {
  constexpr int kNarrowBoxColumns = 16;
  if (kernel.config.kv_tile > 64) {
    kernel.part_columns = kSm90BoxColumns;
    return;
  }
  kernel.part_columns =
      static_cast<int>(round_up(divide_up(kernel.config.head_dim_padded, kFusedParts), kNarrowBoxColumns));
  if (kernel.part_columns <= kSm90BoxColumns / 2) {
    kernel.part_columns = kSm90BoxColumns / 2;
  } else if (kernel.part_columns % kSm90BoxColumns != 0) {
    kernel.row_box_columns = kNarrowBoxColumns;
  }
}

// Chooses as many stages as fit. Those of q and k are in use for longer, and are added first.
void choose_sm90_stages(Sm90BackwardKernel& kernel) {
  constexpr int kMostStages = 5;
  kernel.config.stages = 1;
  kernel.v_stages = 1;
  if (kernel.tables > 0) {
    kernel.table_bytes =
        bytes_of_table(std::min(kMostTableBytes, kHopperSharedBytes - sm90_shared_bytes(kernel)), kernel.tables);
  }
  const auto add = [&](int& stages) {
    ++stages;
    const bool fits = stages <= kMostStages && sm90_shared_bytes(kernel) <= kHopperSharedBytes;
    stages -= fits ? 0 : 1;
    return fits;
  };
  bool grows = true;
  while (grows) {
    grows = add(kernel.config.stages);
    grows |= add(kernel.v_stages);
  }
  if (kernel.planes) {
    kernel.v_stages = kernel.config.stages;
  }
  kernel.config.shared_bytes = sm90_shared_bytes(kernel);
}

// Two warpgroups of 64 rows each. Narrow heads leave enough registers for wide tiles, unless a program needs them.
// Kernels for captured tensors whose rows are queries need fewer registers: three warpgroups, if shared memory holds
// their rows.
Sm90BackwardKernel sm90_kernel(const Problem& problem, Sm90BackwardKernel kernel) {
  constexpr int kNarrow = 64;
  const bool has_room = std::max(problem.head_dim, problem.value_dim) <= kMostColumns;
  const int consumers = kernel.captures && !kernel.rows_are_keys && !kernel.planes && has_room ? 3 : 2;
  ForwardConfig& config = kernel.config;
  config = common_config(problem);
  config.kind = KernelKind::kHopper;
  config.architecture = kHopper;
  config.q_tile = 64 * consumers;
  config.threads = 128 * (consumers + 1);
  const bool narrow = std::max(config.head_dim_padded, config.value_dim_padded) <= kNarrow;
  const bool wide_tiles = kernel.fused ? !config.dropout : !problem.score_mod && !config.dropout;
  config.kv_tile = narrow && kernel.rows_are_keys && wide_tiles && !kernel.captures ? 128 : 64;
  if (consumers == 3) {
    config.producer_registers = 32;
    config.consumer_registers = 160;
  } else {
    const bool needs_more = config.scout_loads || kernel.roles;
    config.producer_registers = kernel.fused ? 24 : needs_more ? 56 : 40;
    config.consumer_registers = kernel.fused ? 240 : needs_more ? 224 : 232;
  }
  if (kernel.fused && kernel.roles) {
    config.threads += 128;  // for parts of d_q
    config.producer_registers = 56;
    config.consumer_registers = 184;
  }
  kernel.exact_output = keeps_exact_output(problem);
  if (kernel.fused) {
    kernel.rings = kernel.ordered && !kernel.roles && !finds_visits(problem);
    // As measured (docs/lessons/cuda_backward.md): with tiles of 128 queries, or heads that share keys, nothing is
    // gained.
    kernel.mirrors =
        kernel.ordered && config.kv_tile == 64 && problem.q_heads == problem.kv_heads && begins_later(problem);
    kernel.heads_take_turns = !visits_differ_by_head(problem) && !is_sliding(problem);
    choose_parts(kernel);
  }
  choose_sm90_stages(kernel);
  return kernel;
}

// Why Hopper's kernels do not take the problem; empty if they do.
std::string sm90_refusal(const Problem& problem, const ForwardConfig& config) {
  constexpr int kWidest = 256;
  if (problem.dtype == DType::kF32) {
    return "its matrix products take bf16 and f16 only, and Flashlift does not round f32 inputs silently";
  }
  if (std::max(config.head_dim_padded, config.value_dim_padded) > kWidest) {
    return fmt::format("rows of {} and {} columns are more than the {} that its registers hold", problem.head_dim,
                       problem.value_dim, kWidest);
  }
  if (!problem.want_lse) {
    return "it reads the row sums from lse; compile the problem with `lse`";
  }
  if (problem.page_size > 0) {
    return "it does not support paged keys and values";
  }
  if (problem.empty_rows == EmptyRows::kUniform && config.dropout) {
    return "it does not spread the gradients of rows without keys over values that dropout leaves";
  }
  return "";
}

Result<Sm90Backward> choose_sm90_backward(const Problem& problem) {
  constexpr int kColumnsOfTwoSums = 256;
  constexpr int kColumnsOfSharedOperands = 320;  // if the second sum's operand replaces the first's
  const ForwardConfig common = common_config(problem);
  if (const std::string reason = sm90_refusal(problem, common); !reason.empty()) {
    return unsupported("{}", reason);
  }
  const int columns = common.head_dim_padded + common.value_dim_padded;
  const bool shares_operands =
      columns > kColumnsOfTwoSums && columns <= kColumnsOfSharedOperands && !problem.score_mod && !common.dropout;
  const bool one_kernel = columns <= kColumnsOfTwoSums || shares_operands;
  // (Where one kernel computes both sums without roles, it is faster.)
  const bool by_roles = !one_kernel && !problem.score_mod && !common.dropout;
  Sm90Backward config;
  const bool corrects = 2 * common.head_dim_padded <= kColumnsOfTwoSums;
  // Wider rows leave the values only one stage in shared memory, for which d_p's product would wait.
  constexpr int kColumnsWithStages = 192;
  const bool d_p_apart =
      !corrects && common.head_dim_padded <= kColumnsWithStages && !problem.score_mod && !common.dropout;
  config.queries = sm90_kernel(
      problem,
      {.config = {}, .rows_are_keys = false, .sums_first = corrects, .sums_second = true, .d_p_apart = d_p_apart});
  config.keys = sm90_kernel(problem, {.config = {},
                                      .rows_are_keys = true,
                                      .sums_first = one_kernel || by_roles,
                                      .sums_second = true,
                                      .roles = by_roles});
  if (shares_operands) {
    config.keys.config.producer_registers = 24;
    config.keys.config.consumer_registers = 240;
  }
  // With narrower values, seven products in two kernels are as fast or faster. Values wider than keys would spill.
  const bool roles_fit = common.value_dim_padded > kMostColumns && common.head_dim_padded <= kColumnsWithStages &&
                         common.value_dim_padded <= common.head_dim_padded;
  const bool by_fused_roles = roles_fit && !problem.score_mod && !common.dropout;
  // It adds a key tile's part to d_q before <d_out, out> could be corrected: that number must be exact from the start.
  if (!keeps_exact_output(problem)) {
    config.not_fused = kRoundedOutput;
  } else if (by_fused_roles) {
    config.fused = sm90_kernel(problem, {.config = {},
                                         .rows_are_keys = true,
                                         .sums_first = true,
                                         .sums_second = true,
                                         .fused = true,
                                         .ordered = problem.deterministic,
                                         .roles = true});
    config.queries.repeats = true;
  } else if (roles_fit) {
    config.not_fused = fmt::format("for rows of {} and {} columns it has no score_mod and no dropout", problem.head_dim,
                                   problem.value_dim);
  } else if (std::max(common.head_dim_padded, common.value_dim_padded) > kMostColumns) {
    config.not_fused =
        fmt::format("rows of {} and {} columns are more than the {} of which its registers hold two sums",
                    problem.head_dim, problem.value_dim, kMostColumns);
  } else {
    config.fused = sm90_kernel(problem, {.config = {},
                                         .rows_are_keys = true,
                                         .sums_first = true,
                                         .sums_second = true,
                                         .fused = true,
                                         .ordered = problem.deterministic});
    config.queries.repeats = true;
  }
  if (!one_kernel && !by_roles) {
    config.values = sm90_kernel(problem, {.config = {}, .rows_are_keys = true, .sums_first = true});
  }
  if (needs_fallback(problem)) {
    FLASHLIFT_ASSIGN_OR_RETURN(config.fallback, choose_sm80_apart(problem, kHopper));
    config.queries.has_fallback = config.keys.has_fallback = true;
    if (config.fused) {
      config.fused->has_fallback = true;
    }
    if (config.values) {
      config.values->has_fallback = true;
    }
  }
  return config;
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

}  // namespace

bool reads_residual(const Sm80Backward& config) { return config.fused.has_value(); }
// Without the sum that corrects <d_out, out>, the kernel for queries repeats the tiles where it is not exact.
bool reads_residual(const Sm90Backward& config) { return config.fused.has_value() || !config.queries.sums_first; }

bool has_row_tiles(const Sm80Backward& config) { return config.fused.has_value(); }
bool has_row_tiles(const Sm90Backward& /*config*/) { return true; }

int architecture_of(const Sm80Backward& config) { return config.queries.architecture; }
int architecture_of(const Sm90Backward& config) { return config.queries.config.architecture; }

int64_t fused_sum_bytes(const Sm90BackwardKernel& fused, int64_t q_len) {
  const ForwardConfig& config = fused.config;
  const int64_t tiles = divide_up(q_len, config.kv_tile) + 1;  // one more, for rows that do not exist
  return tiles * kFusedParts * part_bytes(fused);
}

int64_t fused_sum_bytes(const Sm80FusedKernel& fused, int64_t q_len) {
  const ForwardConfig& config = fused.config;
  const int64_t tiles = divide_up(q_len, config.q_tile) + 1;  // one more, for rows that do not exist
  return tiles * config.q_tile * config.head_dim_padded * static_cast<int64_t>(sizeof(float));
}

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

namespace {

// Loops that search need scores in local memory, where products cannot write them.
bool searches(const Problem& problem) {
  const auto in = [](const std::optional<Program>& program) {
    return program && std::ranges::find(program->nodes, Op::k_search, &Node::op) != program->nodes.end();
  };
  return in(problem.score_mod) || in(problem.mask_mod);
}

}  // namespace

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

std::vector<std::string> definitions(const Sm80FusedKernel& kernel) {
  std::vector<std::string> list = definitions(kernel.config);
  list.push_back(fmt::format("-DFL_WARPS={}", kernel.config.threads / 32));
  list.push_back(fmt::format("-DFL_D_OUT_STAGES={}", kernel.d_out_stages));
  list.push_back(fmt::format("-DFL_HAS_FALLBACK={:d}", kernel.has_fallback));
  return list;
}

std::vector<std::string> query_definitions(const Sm80Backward& config) {
  return with(definitions(config.queries), config.queries, 1);
}

std::vector<std::string> definitions(const CaptureConfig& config) {
  std::vector<std::string> list = with(definitions(config.config), config.config, 1);
  list.push_back(fmt::format("-DFL_ROW_TILES={:d}", config.row_tiles));
  list.push_back(fmt::format("-DFL_HAS_FALLBACK={:d}", config.has_fallback));
  list.push_back(fmt::format("-DFL_TABLE_BYTES={}", config.table_bytes));
  return list;
}

std::vector<std::string> definitions(const CaptureConfig& config, const Sm90BackwardKernel& kernel) {
  std::vector<std::string> list = definitions(kernel);
  list.push_back(fmt::format("-DFL_ROW_TILES={:d}", config.row_tiles));
  return list;
}

std::vector<std::string> key_definitions(const Sm80Backward& config) {
  return with(definitions(config.keys), config.keys, config.chunks);
}

std::vector<std::string> definitions(const Sm90BackwardKernel& kernel) {
  std::vector<std::string> list = definitions(kernel.config);
  list.push_back(fmt::format("-DFL_V_STAGES={}", kernel.v_stages));
  list.push_back(fmt::format("-DFL_ROWS_ARE_KEYS={:d}", kernel.rows_are_keys));
  list.push_back(fmt::format("-DFL_SUMS_FIRST={:d}", kernel.sums_first));
  list.push_back(fmt::format("-DFL_SUMS_SECOND={:d}", kernel.sums_second));
  list.push_back(fmt::format("-DFL_D_P_APART={:d}", kernel.d_p_apart));
  list.push_back(fmt::format("-DFL_FUSED={:d}", kernel.fused));
  list.push_back(fmt::format("-DFL_EXACT_OUTPUT={:d}", kernel.exact_output));
  list.push_back(fmt::format("-DFL_ORDERED={:d}", kernel.ordered));
  list.push_back(fmt::format("-DFL_RINGS={:d}", kernel.rings));
  list.push_back(fmt::format("-DFL_MIRRORS={:d}", kernel.mirrors));
  list.push_back(fmt::format("-DFL_HEADS_TAKE_TURNS={:d}", kernel.heads_take_turns));
  list.push_back(fmt::format("-DFL_PART_COLUMNS={}", kernel.part_columns));
  list.push_back(fmt::format("-DFL_ROW_BOX_COLUMNS={}", kernel.row_box_columns));
  list.push_back(fmt::format("-DFL_HAS_FALLBACK={:d}", kernel.has_fallback));
  list.push_back(fmt::format("-DFL_REPEATS={:d}", kernel.repeats));
  list.push_back(fmt::format("-DFL_CAPTURES={:d}", kernel.captures));
  list.push_back(fmt::format("-DFL_TABLES={}", kernel.tables));
  list.push_back(fmt::format("-DFL_TABLE_BYTES={}", kernel.table_bytes));
  list.push_back(fmt::format("-DFL_ROLES={:d}", kernel.roles));
  return list;
}

RowThreads row_threads(const Problem& problem) {
  constexpr int64_t kPieceBytes = 16;  // read by a thread at once
  constexpr int kWarp = 32;
  constexpr int kLeastThreads = 4;  // read 64 bytes that lie together
  constexpr int kMostPieces = 4;    // of a thread
  const auto pieces = static_cast<int>(
      divide_up(problem.value_dim * static_cast<int64_t>(size_in_bytes(problem.out_dtype)), kPieceBytes));
  // As many as leave none without a piece, unless these are too few.
  int threads = pieces & -pieces;
  if (threads < kLeastThreads || threads > kWarp || pieces / threads > kMostPieces) {
    threads = static_cast<int>(std::min(std::bit_ceil(static_cast<unsigned>(pieces)), unsigned{kWarp}));
  }
  const int64_t of_row = divide_up(pieces, threads);
  const int rows = of_row == 1 ? std::clamp(threads * kLeastRowTile / kRowTileThreads, 1, kMostPieces) : 1;
  return {.threads = threads, .rows = rows};
}

// Defines only what the kernels read, so that problems can share them. They have no captured tensors as arguments.
std::vector<std::string> preprocess_definitions(const Problem& problem, bool row_tiles) {
  std::vector<std::string> list = postprocess_definitions(problem, row_tiles);
  list.push_back(fmt::format("-DFL_OUT_F32={:d}", problem.out_dtype == DType::kF32));
  list.push_back(fmt::format("-DFL_OUT_BF16={:d}", problem.out_dtype == DType::kBF16));
  list.push_back(fmt::format("-DFL_VALUE_DIM={}", problem.value_dim));
  list.push_back(fmt::format("-DFL_HIDES_EMPTY_ROWS={:d}", hides_empty_rows(problem)));
  const RowThreads of_row = row_threads(problem);
  list.push_back(fmt::format("-DFL_ROW_THREADS={}", of_row.threads));
  list.push_back(fmt::format("-DFL_ROWS_OF_THREAD={}", of_row.rows));
  list.push_back(fmt::format("-DFL_D_OUT_F32={:d}", problem.d_out_dtype() == DType::kF32));
  list.push_back(fmt::format("-DFL_D_OUT_BF16={:d}", problem.d_out_dtype() == DType::kBF16));
  define_d_out(problem.dtype, problem.d_out_dtype(), list);
  return list;
}

std::vector<std::string> postprocess_definitions(const Problem& problem, bool row_tiles) {
  return {fmt::format("-DFL_INPUT_F32={:d}", problem.dtype == DType::kF32),
          fmt::format("-DFL_BF16={:d}", problem.dtype == DType::kBF16),
          fmt::format("-DFL_HAS_SINKS={:d}", problem.sinks > 0),
          fmt::format("-DFL_ROW_TILES={:d}", row_tiles),
          "-DFL_MAXIMUM_LAG=0",
          "-DFL_SPLIT=0",
          "-DFL_NORMALIZE=1",
          "-DFL_CAPTURE_COUNT=0"};
}

}  // namespace flashlift::cuda
