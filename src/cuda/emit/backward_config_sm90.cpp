// The tiles, stages and registers of Hopper's backward kernels.
#include <algorithm>

#include "cuda/emit/backward_choices.h"
#include "cuda/emit/conditions.h"
#include "cuda/emit/program_emitter.h"
#include "support/error.h"
#include "support/rounding.h"

namespace flashlift::cuda {
namespace {

constexpr int kHopper = 90;

constexpr int64_t kSm90Bookkeeping = 640;       // barriers and the like
constexpr int64_t kKeyStageBookkeeping = 32;    // of one more stage of keys
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
  const bool statistics_with_v = kernel.fused && !kernel.roles;
  const int statistics_stages = statistics_with_v ? kernel.v_stages : config.stages;
  const int64_t rows = kernel.roles ? config.q_tile / 2 : config.q_tile;
  const int64_t exchange = kernel.roles ? (kernel.fused ? 1 : 2) * 2 * 64 * config.kv_tile : 0;
  return rows * (kernel.key_stages * own_qk_row + (reads_v ? own_v_row : 0)) + exchange +
         config.kv_tile * (config.stages * qk_row + kernel.v_stages * v_row + statistics_stages * column_statistics) +
         fused + row_statistics + (kernel.diagonals ? diagonal_bytes(config) : 0) + kernel.tables * kernel.table_bytes +
         kSm90Bookkeeping + (kernel.key_stages - 1) * kKeyStageBookkeeping;
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

// Chooses as many stages of columns as fit. Those of q and k are in use for longer, and are added first.
void choose_column_stages(Sm90BackwardKernel& kernel) {
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
}

// The fused kernel has two stages of a block's own keys, if they leave room for the columns: heads of up to 96 columns
// gain, but with 128 columns, two stages of q instead of three cost more (docs/lessons/cuda_backward.md).
void choose_sm90_stages(Sm90BackwardKernel& kernel) {
  constexpr int kLeastStages = 3;
  constexpr int kLeastVStages = 2;
  if (kernel.fused && !kernel.roles) {
    kernel.key_stages = 2;
    choose_column_stages(kernel);
    if (kernel.config.stages < kLeastStages || kernel.v_stages < kLeastVStages) {
      kernel.key_stages = 1;
    }
  }
  if (kernel.key_stages == 1) {
    choose_column_stages(kernel);
  }
  kernel.config.shared_bytes = sm90_shared_bytes(kernel);
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

}  // namespace

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

int64_t fused_sum_bytes(const Sm90BackwardKernel& fused, int64_t q_len) {
  const ForwardConfig& config = fused.config;
  const int64_t tiles = divide_up(q_len, config.kv_tile) + 1;  // one more, for rows that do not exist
  return tiles * kFusedParts * part_bytes(fused);
}

}  // namespace flashlift::cuda
