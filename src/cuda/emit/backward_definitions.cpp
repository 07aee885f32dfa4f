// The preprocessor definitions of backward kernels.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "cuda/emit/backward_choices.h"
#include "support/rounding.h"

namespace flashlift::cuda {
namespace {

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

}  // namespace

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
  list.push_back(fmt::format("-DFL_KEY_STAGES={}", kernel.key_stages));
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
