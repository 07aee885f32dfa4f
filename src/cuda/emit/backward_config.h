// The parameters for which backward kernels are specialised, including their tiles.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "cuda/emit/capture_loads.h"
#include "cuda/emit/forward_config.h"

namespace flashlift::cuda {

// The families of main parts (launch/backward/main.h).
enum class BackwardKind : uint8_t { kHopper, kPortable };
inline constexpr size_t kBackwardKinds = 2;
const char* to_string(BackwardKind kind);  // "cuda_sm90", "cuda_sm80": the name of the forward kernel that it goes with

// The portable kernel that computes all gradients (kernels/sm80/backward_fused.cu): q_tile queries and kv_tile keys.
struct Sm80FusedKernel {
  ForwardConfig config;
  int d_out_stages = 0;  // config.stages are those of Q
  bool has_fallback = false;
};

// The portable kernels. Of the two separate kernels, one processes tiles of queries and the other tiles of keys, and
// both compute the scores.
struct Sm80Backward {
  std::optional<Sm80FusedKernel> fused;
  std::string not_fused;  // the reason if there is none
  // The separate kernels run if there is no fused one, or if only the preprocess can find out that a call is not for
  // it.
  bool runs_apart() const { return !fused || fused->has_fallback; }
  ForwardConfig queries;
  ForwardConfig keys;  // q_tile is the number of keys for a block, kv_tile that of queries loaded at a time
  int chunks = 1;      // number of blocks that share the columns of d_k and d_v
};

// One of Hopper's kernels (kernels/sm90/backward_consumer.cuh).
struct Sm90BackwardKernel {
  ForwardConfig config;  // q_tile rows for a block, kv_tile columns at a time, `stages` of q or k
  int v_stages = 0;      // stages of v or d_out
  int key_stages = 1;    // if fused: stages of a block's own keys
  bool rows_are_keys = false;
  bool sums_first = false;    // sums p * d_out, or p * k
  bool sums_second = false;   // sums d_s * q, or d_s * k
  bool d_p_apart = false;     // d_p has an accumulator of its own, so that its product overlaps with the exponentials
  bool fused = false;         // rows are keys, and d_q is computed, too
  bool exact_output = false;  // keeps_exact_output()
  bool ordered = true;        // if fused: key tiles add to d_q in a fixed order, so that it always has the same bits
  bool rings = false;         // if fused: key tiles may form rings (kernels/sm90/key_rings.cuh)
  bool mirrors = false;       // if fused: BackwardParams::mirrored_heads may be more than 0
  // If fused: a tile of queries of all heads that share keys comes before the next one of any of them.
  bool heads_take_turns = false;
  int part_columns = 0;  // if fused: of d_q, that one warpgroup computes. By roles, in two parts.
  // Of the boxes in shared memory that hold a block's own rows: their swizzle covers a row.
  int row_box_columns = kSm90BoxColumns;
  bool has_fallback = false;
  bool repeats = false;  // repeats the tiles that the fused kernel could not compute
  // Sums for gradients of captured tensors in place of all these; along diagonals, too.
  bool captures = false;
  int tables = 0;  // of elements
  bool diagonals = false;
  int64_t table_bytes = 0;  // of shared memory, for each table of elements (kernels/common/block_sums.cuh)
  bool roles = false;       // a warpgroup for each of the two sums, in clusters of two blocks (backward_keys_roles.cu)
  bool planes = false;      // sums for planes only (kernels/sm90/backward_planes.cu)
};

struct Sm90Backward {
  // Computes all gradients. The kernel for queries then only repeats tiles in which a mask hides keys that are not
  // finite, and there are no other kernels.
  std::optional<Sm90BackwardKernel> fused;
  std::string not_fused;  // the reason if there is none
  Sm90BackwardKernel queries;
  Sm90BackwardKernel keys;  // computes d_k, and also d_v unless the next kernel exists
  // For rows so wide that a warpgroup's registers hold only one sum, if a score_mod or dropout rules out roles.
  std::optional<Sm90BackwardKernel> values;
  // For calls of which only the preprocess can find out that they are not for these kernels: their d_out is not exact
  // in the inputs' type, or an lse is so large that it is not exact.
  std::optional<Sm80Backward> fallback;

  // The kernel for queries repeats tiles after the fused one, which is needed only if there is a mask.
  bool runs_queries() const { return !fused || queries.config.has_mask_mod; }
};

// The number of parts in which the fused kernel adds to a tile's d_q, and the size in bytes of a head's sums.
inline constexpr int kFusedParts = 2;
inline int fused_parts(const Sm90BackwardKernel& fused) { return fused.roles ? 2 * kFusedParts : kFusedParts; }
int64_t fused_sum_bytes(const Sm90BackwardKernel& fused, int64_t q_len);
int64_t fused_sum_bytes(const Sm80FusedKernel& fused, int64_t q_len);

// Of a problem with a residual: does the residual save products?
bool reads_residual(const Sm80Backward& config);
bool reads_residual(const Sm90Backward& config);

// Are rows' statistics in tiles (kernels/common/backward_params.h)?
bool has_row_tiles(const Sm80Backward& config);
bool has_row_tiles(const Sm90Backward& config);
int architecture_of(const Sm80Backward& config);
int architecture_of(const Sm90Backward& config);

using BackwardConfig = std::variant<Sm80Backward, Sm90Backward>;

// For an architecture of at least 80, or 90 itself for Hopper's. Errors: kUnsupported with the reason.
Result<BackwardConfig> choose_backward_config(const Problem& problem, BackwardKind kind, int architecture);

// Hopper's kernels for gradients of captured tensors (kernels/sm90): for tiles of queries, of keys and of planes.
struct Sm90CaptureKernels {
  Sm90BackwardKernel queries;
  Sm90BackwardKernel keys;
  Sm90BackwardKernel planes;
};

// The kernels for gradients of captured tensors (kernels/sm80/backward_captures.cu), which run after those of a main
// part.
struct CaptureConfig {
  // The portable kernels: q_tile rows a block, kv_tile columns at a time.
  ForwardConfig config;
  int64_t table_bytes = 0;                   // of each table, in the kernel for queries
  std::optional<Sm90CaptureKernels> hopper;  // replace the portable ones
  bool makes_rows = false;                   // computes the rows' statistics from the scores
  bool row_tiles = false;                    // reads those of the preprocess
  // Whether only the values of a call decide if the preprocess's statistics suit it, as for the main part's fallback.
  // Where they do not, the kernels read the statistics that they compute from the scores.
  bool has_fallback = false;
};

// For an architecture of at least 80. Errors: kUnsupported with the reason.
Result<CaptureConfig> choose_capture_config(const Problem& problem, const BackwardConfig& main,
                                            const std::vector<CaptureLoad>& loads);

std::string describe(const BackwardConfig& config);

// Preprocessor definitions, one -D option each.
std::vector<std::string> definitions(const Sm80FusedKernel& kernel);
std::vector<std::string> query_definitions(const Sm80Backward& config);
std::vector<std::string> key_definitions(const Sm80Backward& config);
std::vector<std::string> definitions(const CaptureConfig& config);
// kernel: one of Hopper's in the configuration.
std::vector<std::string> definitions(const CaptureConfig& config, const Sm90BackwardKernel& kernel);
std::vector<std::string> definitions(const Sm90BackwardKernel& kernel);
// In the preprocess, a row of the output is shared by so many threads, each of which has so many rows. Where it has
// several, those of a block are at most kLeastRowTile, and so belong to one tile.
inline constexpr int kLeastRowTile = 64;
inline constexpr int kRowTileThreads = 256;  // of a block
struct RowThreads {
  int threads;
  int rows;
};
RowThreads row_threads(const Problem& problem);
// For the kernels before and after the main part. row_tiles: whether the statistics of rows are stored in tiles
// (kernels/common/backward_params.h).
std::vector<std::string> preprocess_definitions(const Problem& problem, bool row_tiles);
std::vector<std::string> postprocess_definitions(const Problem& problem, bool row_tiles);

}  // namespace flashlift::cuda
