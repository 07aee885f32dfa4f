// Vector micro-kernels over tiles, compiled once per instruction set.
//
// A score tile is row-major: row r of S has kv along its columns, in blocks of whole panels. Both matrix products are
// one kernel, C (+)= A B, with A row-major and read by broadcasts and B packed into panels of `panel_width` columns
// (fewer, in whole vectors, for the last): S = Q K^T with K^T packed, then O += P V with V packed.
#pragma once

#include <cstdint>

#include "cpu/tile/isa.h"
#include "flashlift/tensor.h"

namespace flashlift::cpu {

// A matrix in the caller's memory: element (row, column) is at data + (row * row_stride + column * column_stride)
// elements. The dtype is f32, bf16 or f16.
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
};

// State of the online softmax of one row. The sum of e^(score) over the keys so far is sum * e^base(max), and the
// accumulated output row has the same scale. A maximum of +inf makes the output NaN; sum then only shows whether a
// score was NaN.
//
// `divisor` is the sum of the probabilities by which the values were multiplied, on the scale of `sum`. Products of
// bf16 operands round the probabilities, which also changes their sum. Dividing the output by the sum of the unrounded
// ones would change it by that ratio times the values' mean. This error is common to the whole row, and the backward
// pass cannot distinguish it from a gradient. lse uses the unrounded sum.
struct RowState {
  float max = -__builtin_inff();
  float sum = 0;
  float divisor = 0;
};

// The exponentials are 2^(score * log2(e) - shift), with the shift rounded to a float: one multiply-add. The rounding
// is the same for the whole row and cancels, as long as it is small compared to 1. For large maxima (a row masked by a
// finite constant) they are 2^((score - max) * log2(e)).
inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLargeScore = 1e4f;
inline bool is_large_score(float max) { return !(max > -kLargeScore && max < kLargeScore); }
inline double exponent_base(float max) {
  constexpr double kLn2 = 0.69314718055994530942;
  // log2(e) as a float has a relative error of -1e-8, which is multiplied by the maximum's distance from 0.
  constexpr double kLog2EError = static_cast<double>(kLog2E) * kLn2 - 1.0;
  return is_large_score(max) ? static_cast<double>(max)
                             : static_cast<double>(max * kLog2E) * kLn2 - static_cast<double>(max) * kLog2EError;
}

// The numbers of a row that the backward pass needs: p = e^(s - shift) * factor, and ds = p * (dp - delta). Compiled
// gradient functions depend on this layout.
struct RowGradient {
  float shift;
  float factor;  // 0 for a row without keys
  float delta;   // <d_out, out> - d_lse
  int32_t empty;
};

// Smaller probabilities of the backward pass are set to 0: arithmetic with results below f32's normal range, 1.2e-38,
// takes a processor some hundred cycles.
inline constexpr float kLeastProbability = 1.65e-38f;

// Memory that is read next. A product prefetches `rate` of its cache lines into the second-level cache in every
// kPrefetchSteps steps. More at once would fill the processor's line buffers, and the product would wait for memory
// after all.
inline constexpr int64_t kPrefetchSteps = 16;
struct PrefetchQueue {
  struct Piece {  // `count` ranges of `bytes`, `stride` bytes apart
    const char* data;
    int64_t count;
    int64_t bytes;
    int64_t stride;
  };
  static constexpr int kMaxPieces = 8;
  Piece pieces[kMaxPieces];
  int count = 0;
  int next = 0;      // the first piece with remaining lines
  int64_t at = 0;    // the next byte of that piece's first range
  int64_t rate = 0;  // cache lines a step
};

struct PairKernels;  // pairs.h

// Dropout of one call.
struct Dropout {
  uint32_t threshold = 0;  // a probability is kept if its random word is not smaller
  float factor = 1;        // 1 / (1 - rate), which kept probabilities are multiplied by
  uint64_t seed = 0;
  int64_t origin_b = 0;  // the numbers of the call's first batch and head
  int64_t origin_h = 0;
  const uint8_t* keep = nullptr;  // the caller's mask instead, if the problem has one
  std::array<int64_t, 4> keep_strides{};

  bool is_active() const { return threshold > 0 || keep != nullptr; }
};
// The row whose probabilities are dropped.
struct DropoutRow {
  int64_t b = 0;
  int64_t h = 0;
  int64_t q = 0;
};

struct TileKernels {
  Isa isa;
  int lanes;        // floats in a vector
  int panel_width;  // columns in a full panel

  // dst[r * dst_stride + c] = src(r, c) * scale, for rows x columns elements.
  void (*convert_rows)(const MatrixView& src, int64_t rows, int64_t columns, float scale, float* dst,
                       int64_t dst_stride);
  // The transpose: dst[c * dst_stride + r] = src(r, c) * scale for r < rows, 0 for rows <= r < dst_stride. dst_stride
  // is a multiple of lanes, rows <= dst_stride.
  void (*pack_transposed)(const MatrixView& src, int64_t rows, int64_t columns, float scale, float* dst,
                          int64_t dst_stride);

  // Prefetches the next `rate` lines into the second-level cache.
  void (*bring_near)(PrefetchQueue& prefetches);

  // Whether none of `count` floats, a multiple of lanes, is infinite or NaN.
  bool (*all_finite)(const float* x, int64_t count);

  // C[rows x vectors * lanes] = A[rows x depth] B[depth x vectors * lanes], added to C when `accumulate`.
  // vectors <= panel_width / lanes.
  void (*multiply)(int64_t rows, int vectors, int64_t depth, const float* a, int64_t a_stride, const float* b,
                   int64_t b_stride, float* c, int64_t c_stride, bool accumulate, PrefetchQueue& prefetches);

  // C += A^T B with A [depth x rows], a_stride between its rows of `rows` floats; otherwise as multiply().
  void (*multiply_transposed)(int64_t rows, int vectors, int64_t depth, const float* a, int64_t a_stride,
                              const float* b, int64_t b_stride, float* c, int64_t c_stride, PrefetchQueue& prefetches);
  // For a few rows, for which packing keys and values would cost more than it saves. Their column stride is 1. `next`
  // (of the same dtype) is the data that is read afterwards, or has no data: for each row read, one of its rows is
  // prefetched into the second-level cache, so that no time is spent waiting for memory. s[r][j] = <q[r], keys[j]>.
  void (*dot_rows)(const MatrixView& keys, int64_t count, int64_t depth, const float* q, int64_t q_stride, int64_t rows,
                   float* s, int64_t s_stride, const MatrixView& next);
  // o[r] += sum over j of p[r][j] values[j]; the rows of o are whole vectors.
  void (*add_rows)(const MatrixView& values, int64_t count, int64_t columns, const float* p, int64_t p_stride,
                   int64_t rows, float* o, int64_t o_stride, const MatrixView& next);

  // Multiplies the scores by scale, sets columns [columns, round_up(columns, lanes)) to -inf and writes each row's
  // maximum (NaN ignored).
  void (*row_max)(float* s, int64_t s_stride, int64_t rows, int64_t columns, float scale, float* maxima);
  // One step of the online softmax: raises state to the block's maxima, replaces s by its exponentials (columns is a
  // multiple of lanes), adds them to the sums, and rescales the rows of o, `o_columns` wide, if a maximum grew.
  void (*softmax)(float* s, int64_t s_stride, int64_t rows, int64_t columns, const float* maxima, RowState* state,
                  float* o, int64_t o_stride, int64_t o_columns);
  // logs[r] = the natural logarithm of states[r].sum, if that is a normal positive number; undefined otherwise.
  void (*log_sums)(const RowState* states, int64_t rows, double* logs);
  // s[c] = 0 for each of `columns` dropped keys from kv_begin on (a multiple of 64). Changes whole vectors.
  void (*drop_out)(float* s, int64_t columns, const Dropout& dropout, const DropoutRow& row, int64_t kv_begin);
  // For the backward pass, on rows with all their scores in s, and -inf where there is no key (columns is a multiple of
  // lanes): sums[r] = sum over c of e^(s[r][c] - maxima[r]), weighted[r] = sum over c of e^(s[r][c] - maxima[r])
  // dp[r][c]. A key without probability does not contribute, whatever its dp is.
  void (*sum_rows)(const float* s, const float* dp, int64_t stride, int64_t rows, int64_t columns, const float* maxima,
                   float* sums, float* weighted);
  // For the backward pass: converts s from <q, k> to probabilities, and ds from <d_out, v> to the gradients of scale *
  // <q, k>. Sets both to 0 in columns [columns, round_up(columns, lanes)).
  void (*score_gradients)(float* s, float* ds, int64_t stride, int64_t rows, int64_t columns, float scale,
                          const RowGradient* states);
  // dst[c] = src[c] * factor, converted to dst's dtype (f32, bf16, f16), dst_stride in elements.
  void (*store_row)(const float* src, int64_t columns, float factor, void* dst, DType dtype, int64_t dst_stride);

  const PairKernels* pairs;  // products of bf16 operands; null if the instruction set has none
};

// The kernels for an instruction set that this machine has; the portable ones if this build lacks them.
const TileKernels& tile_kernels(Isa isa);

}  // namespace flashlift::cpu
