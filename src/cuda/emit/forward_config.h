// The parameters for which a forward kernel is specialised, including its tiles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/emit/length_class.h"
#include "flashlift/problem.h"

namespace flashlift::cuda {

enum class KernelKind : uint8_t { kBulkDecode, kDecode, kHopper, kPortable };
inline constexpr size_t kKernelKinds = 4;
const char* to_string(KernelKind kind);  // "cuda_sm90_decode", "cuda_decode", "cuda_sm90", "cuda_sm80"

// Whether the program may return -inf for a finite score, apart from overflow.
bool may_mask(const Program& score_mod);

struct ForwardConfig {
  KernelKind kind = KernelKind::kPortable;
  // Whether this is a kernel for few queries, whose tiles contain all rows that share keys.
  bool decodes() const { return kind == KernelKind::kBulkDecode || kind == KernelKind::kDecode; }
  int architecture = 80;  // of the machine code: 80, 86, 89, 90, 100, 120
  DType dtype = DType::kBF16;
  DType out_dtype = DType::kBF16;
  DType d_out_dtype = DType::kBF16;  // backward

  int head_dim = 0;
  int value_dim = 0;
  int head_dim_padded = 0;   // a multiple of 16: what the products run over
  int value_dim_padded = 0;  // a multiple of 32
  int q_tile = 0;
  int kv_tile = 0;
  int stages = 0;
  int threads = 0;
  int64_t shared_bytes = 0;

  // Hopper only.
  int producer_registers = 0;
  int consumer_registers = 0;
  bool ping_pong = false;
  bool plain_rounds = false;  // separate code for the rounds between the first and the last of a query tile
  bool prefetch_q = false;    // prefetches the next query tile's Q into the L2 cache
  int q_stages = 1;           // number of query tiles whose Q fits into shared memory
  bool scout_loads = false;   // the mask reads captured tensors
  bool skips = false;         // a warpgroup skips key tiles that none of its own rows sees

  // The portable kernel for 16-bit inputs only.
  int fragments = 0;  // number of 16-row fragments of a warp
  int blocks = 0;     // number of blocks on a multiprocessor for which registers suffice

  // Whole 16-byte stores of the output: its rows must be contiguous and aligned.
  bool vector_output = false;

  bool has_score_mod = false;
  bool has_mask_mod = false;
  bool redo_all = false;  // keys of any tile may be masked although they are not finite: see kernels/common/redo.cuh
  bool has_sinks = false;
  bool want_lse = false;
  bool want_row_max = false;
  bool want_residual = false;
  bool exact_sums = false;  // the output's weights add up to 1 as they are rounded: see kernels/sm80/forward.cu
  bool dropout = false;
  bool keep_mask = false;
  bool dropout_words = false;
  int page_size = 0;
  int page_piece = 0;  // number of a page's keys in one bulk copy
  // The number of powers of two by which a row's running maximum may be below the true one before the accumulator is
  // rescaled. Most tiles then need no rescaling, which saves 2 to 9 % of the time (docs/lessons). But the largest
  // probability is rounded to 16 bits as well, whereas it otherwise is exactly 1: in rows with nearly all probability
  // at one key, this is the only error. The portable kernel for 16-bit inputs corrects it. The kernels for few queries
  // and for f32 have no lag: in them rescaling is cheap.
  int maximum_lag = 0;
  bool normalize = true;
  EmptyRows empty_rows = EmptyRows::kZero;
  int captures = 0;
};

// The shared memory that a block may have on sm_86, 89 and 120; sm_80, 90 and 100 have more.
inline constexpr int64_t kPortableSharedBytes = 101376;
inline constexpr int64_t kHopperSharedBytes = 232448;  // on sm_90 and 100
inline constexpr int kSm90BoxColumns = 64;             // elements of 16 bits under a 128-byte swizzle
// The shared memory of a multiprocessor. A block may have all of it except 1 KiB, which the driver reserves for each
// block.
int64_t shared_memory(int architecture);

// Whether the output is not rounded, or is stored with its rounding error: from such an output the backward pass can
// compute <d_out, out>.
inline bool keeps_exact_output(const Problem& problem) {
  return problem.want_residual || problem.out_dtype == DType::kF32;
}

// The part of a configuration that depends on the problem alone, without tiles and memory.
ForwardConfig common_config(const Problem& problem);
// The Hopper kernel's configuration. Its tiles are chosen for the given length, not for the problem's own. Errors:
// kUnsupported with the reason.
Result<ForwardConfig> choose_hopper_config(const Problem& problem, LengthClass length);
// The configuration of the kernel for few queries that uses bulk copies, for an architecture of at least 90. Errors:
// kUnsupported with the reason.
Result<ForwardConfig> choose_bulk_decode_config(const Problem& problem, int architecture);
// The configuration of the kernel for few queries, for an architecture of at least 80. It supports any problem, but is
// slow with many queries. Errors: kUnsupported with the reason.
Result<ForwardConfig> choose_decode_config(const Problem& problem, int architecture);
// The portable kernel's configuration, for an architecture of at least 80. Errors: kUnsupported with the reason.
Result<ForwardConfig> choose_portable_config(const Problem& problem, int architecture);

// The configuration of any kind of kernel, for an architecture that can run it. Errors: kUnsupported with the reason.
Result<ForwardConfig> choose_forward_config(const Problem& problem, KernelKind kind, LengthClass length,
                                            int architecture);

// A readable description, such as "128x176 tiles, 2 stages, ...".
std::string describe(const ForwardConfig& config);

// The configuration as preprocessor definitions, one -D option each.
std::vector<std::string> definitions(const ForwardConfig& config);

}  // namespace flashlift::cuda
