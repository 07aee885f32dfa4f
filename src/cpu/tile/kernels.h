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
// accumulated output row is scaled alike. A maximum of +inf makes the output NaN; sum then only tells whether a NaN
// score was among them.
//
// `divisor` is the sum of the probabilities as the values were multiplied by them, on the scale of `sum`. Products of
// bf16 operands round the probabilities. Rounding changes their sum as well, and an output divided by the sum of the
// unrounded ones would be off by that ratio times the values' mean: an error that all of the row shares, and that the
// backward pass cannot tell from a gradient. lse is of the unrounded ones.
struct RowState {
  float max = -__builtin_inff();
  float sum = 0;
  float divisor = 0;
};

// The exponentials are 2^(score * log2(e) - shift) with the shift rounded to a float, one multiply-add. The rounding is
// common to the row and cancels, as long as it is small against 1; large maxima (a row masked by a finite constant)
// take 2^((score - max) * log2(e)).
inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLargeScore = 1e4f;
inline bool is_large_score(float max) { return !(max > -kLargeScore && max < kLargeScore); }
inline double exponent_base(float max) {
  constexpr double kLn2 = 0.69314718055994530942;
  // log2(e) as a float is too small by 1e-8 of itself, which the maximum's distance from 0 multiplies.
  constexpr double kLog2EError = static_cast<double>(kLog2E) * kLn2 - 1.0;
  return is_large_score(max) ? static_cast<double>(max)
                             : static_cast<double>(max * kLog2E) * kLn2 - static_cast<double>(max) * kLog2EError;
}

// What a row of the backward pass knows: p = e^(s - shift) * factor, and ds = p * (dp - delta). Known to the compiled
// gradient functions too.
struct RowGradient {
  float shift;
  float factor;  // 0 for a row without keys
  float delta;   // <d_out, out> - d_lse
  int32_t empty;
};

// Probabilities of the backward pass below it are 0: arithmetic that gives numbers below f32's normal range, 1.2e-38,
// takes a processor some hundred cycles.
inline constexpr float kLeastProbability = 1.65e-38f;

// Memory that is read next. A product brings `rate` of its cache lines into the second-level cache beside each
// kPrefetchSteps steps: more of them at once fill the processor's line buffers, and then the product waits for memory
// after all.
inline constexpr int64_t kPrefetchSteps = 16;
struct PrefetchQueue {
  struct Piece {  // `count` stretches of `bytes`, `stride` bytes apart
    const char* data;
    int64_t count;
    int64_t bytes;
    int64_t stride;
  };
  static constexpr int kMaxPieces = 8;
  Piece pieces[kMaxPieces];
  int count = 0;
  int next = 0;      // the first piece of which lines are left
  int64_t at = 0;    // the byte of that piece's first stretch that is next
  int64_t rate = 0;  // cache lines a step
};

struct PairKernels;  // pairs.h

// Dropout of one call.
struct Dropout {
  uint32_t threshold = 0;  // a probability stays if its random word is not below
  float factor = 1;        // 1 / (1 - rate), which those that stay are multiplied by
  uint64_t seed = 0;
  int64_t origin_b = 0;  // what the call's first batch and head count as
  int64_t origin_h = 0;
  const uint8_t* keep = nullptr;  // the caller's mask instead, where the problem has one
  std::array<int64_t, 4> keep_strides{};

  bool is_active() const { return threshold > 0 || keep != nullptr; }
};
// The row of the problem whose probabilities are meant.
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

  // Starts bringing the next `rate` lines into the second-level cache.
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
  // For a few rows, where packing keys and values would cost more than it saves; their column stride is 1. `next`, of
  // their dtype, is what will be read after them, or has no data: beside each row read, one of its rows is brought into
  // the second-level cache, so that memory never waits for the arithmetic.
  // s[r][j] = <q[r], keys[j]>.
  void (*dot_rows)(const MatrixView& keys, int64_t count, int64_t depth, const float* q, int64_t q_stride, int64_t rows,
                   float* s, int64_t s_stride, const MatrixView& next);
  // o[r] += sum over j of p[r][j] values[j]; the rows of o are whole vectors.
  void (*add_rows)(const MatrixView& values, int64_t count, int64_t columns, const float* p, int64_t p_stride,
                   int64_t rows, float* o, int64_t o_stride, const MatrixView& next);

  // Multiplies the scores by scale, sets columns [columns, round_up(columns, lanes)) to -inf and gives each row's
  // maximum (NaN ignored).
  void (*row_max)(float* s, int64_t s_stride, int64_t rows, int64_t columns, float scale, float* maxima);
  // One step of the online softmax: raises state to the block's maxima, replaces s by its exponentials (columns is a
  // multiple of lanes), adds them to the sums, and rescales the rows of o, `o_columns` wide, where a maximum grew.
  void (*softmax)(float* s, int64_t s_stride, int64_t rows, int64_t columns, const float* maxima, RowState* state,
                  float* o, int64_t o_stride, int64_t o_columns);
  // logs[r] = the natural logarithm of states[r].sum, where that is a normal positive number; anything elsewhere.
  void (*log_sums)(const RowState* states, int64_t rows, double* logs);
  // s[c] = 0 for each of `columns` keys from kv_begin on, a multiple of 64, that dropout leaves out. Touches whole
  // vectors.
  void (*drop_out)(float* s, int64_t columns, const Dropout& dropout, const DropoutRow& row, int64_t kv_begin);
  // Of the backward pass, for rows whose scores all stand in s, -inf where there is no key (columns is a multiple of
  // lanes): sums[r] = sum over c of e^(s[r][c] - maxima[r]), weighted[r] = sum over c of e^(s[r][c] - maxima[r])
  // dp[r][c], to which a key without probability adds nothing, whatever its dp.
  void (*sum_rows)(const float* s, const float* dp, int64_t stride, int64_t rows, int64_t columns, const float* maxima,
                   float* sums, float* weighted);
  // Of the backward pass: s from <q, k> to probabilities, ds from <d_out, v> to the gradients of scale * <q, k>; both 0
  // in columns [columns, round_up(columns, lanes)).
  void (*score_gradients)(float* s, float* ds, int64_t stride, int64_t rows, int64_t columns, float scale,
                          const RowGradient* states);
  // dst[c] = src[c] * factor, converted to dst's dtype (f32, bf16, f16), dst_stride in elements.
  void (*store_row)(const float* src, int64_t columns, float factor, void* dst, DType dtype, int64_t dst_stride);

  const PairKernels* pairs;  // products of bf16 operands; null where the instruction set has none
};

// The kernels of an instruction set that this machine has. Those that this build lacks are the portable ones.
const TileKernels& tile_kernels(Isa isa);

}  // namespace flashlift::cpu
