// Micro-kernels with bf16 operands, for processors that multiply pairs of them and sum in f32: the AVX-512 dot product
// (VDPBF16PS) and AMX tiles (TDPBF16PS). Both read the same layouts, so that only the product itself differs.
//
// A is row-major, its rows padded with zeros to `depth_multiple` elements. B is packed into panels like those of
// kernels.h, with two successive rows of B side by side: element (k, column) of a panel of `width` columns is at (k /
// 2) * 2 * width + 2 * column + k % 2. The depth is padded with zeros, too.
#pragma once

#include <cstdint>

#include "cpu/tile/kernels.h"

namespace flashlift::cpu {

using Bf16 = uint16_t;  // the upper half of an f32

struct PairKernels {
  int depth_multiple;  // 2 or 32

  // dst[r * dst_stride + c] = src(r, c) * scale for a power of two, 0 for columns <= c < dst_stride. src is bf16.
  void (*convert_rows)(const MatrixView& src, int64_t rows, int64_t columns, float scale, Bf16* dst,
                       int64_t dst_stride);
  // A panel whose columns are the rows of src, for products with K: B(k, column) = src(column, k), for `rows` columns
  // of `width` and a depth of `columns`, padded to `depth`. width is a multiple of lanes.
  void (*pack_transposed)(const MatrixView& src, int64_t rows, int64_t columns, Bf16* dst, int64_t width,
                          int64_t depth);
  // A panel with the rows of src, for products with V: B(k, column) = src(k, column). Returns whether all elements are
  // finite.
  bool (*pack)(const MatrixView& src, int64_t rows, int64_t columns, Bf16* dst, int64_t width, int64_t depth);

  // C[rows x vectors * lanes] = A[rows x depth] B[depth x vectors * lanes], added to C when `accumulate`.
  // depth is a multiple of depth_multiple, vectors <= panel_width / lanes.
  // b_stride counts pairs.
  void (*multiply)(int64_t rows, int vectors, int64_t depth, const Bf16* a, int64_t a_stride, const Bf16* b,
                   int64_t b_stride, float* c, int64_t c_stride, bool accumulate, PrefetchQueue& prefetches);

  // Like TileKernels::softmax, but rounds the exponentials to bf16 and writes them to the first half of each row of s,
  // followed by zeros up to depth_multiple. RowState::sum is the sum of the exponentials before rounding, `divisor`
  // that of the rounded ones.
  void (*softmax)(float* s, int64_t s_stride, int64_t rows, int64_t columns, const float* maxima, RowState* state,
                  float* o, int64_t o_stride, int64_t o_columns);

  // For the backward pass: dst[c * dst_stride + r] = src[r * src_stride + c] for r < rows, 0 for rows <= r <
  // dst_stride; dst_stride is even. Returns whether all elements are finite.
  bool (*transpose)(const Bf16* src, int64_t src_stride, int64_t rows, int64_t columns, Bf16* dst, int64_t dst_stride);
  // x = high + low, except for the rounding of low; low is 0 where high is infinite or NaN. Returns whether some low is
  // not 0.
  bool (*split)(const float* x, int64_t count, Bf16* high, Bf16* low);
  // Rounds floats to the layout of pack().
  void (*round_panel)(const float* src, int64_t src_stride, int64_t rows, int64_t columns, Bf16* dst, int64_t width,
                      int64_t depth);
  // Rounds floats to the layout of convert_rows().
  void (*round_rows)(const float* src, int64_t src_stride, int64_t rows, int64_t columns, Bf16* dst,
                     int64_t dst_stride);

  // Must be called before and after multiply() on each thread: AMX has to be configured, and its registers released.
  void (*begin)();
  void (*end)();
};

// Allows this thread to call PairKernels::multiply during its lifetime.
class PairSection {
 public:
  explicit PairSection(const PairKernels* pairs) : pairs_(pairs) {
    if (pairs_ != nullptr) {
      pairs_->begin();
    }
  }
  ~PairSection() {
    if (pairs_ != nullptr) {
      pairs_->end();
    }
  }
  PairSection(const PairSection&) = delete;
  PairSection& operator=(const PairSection&) = delete;

 private:
  const PairKernels* pairs_;
};

}  // namespace flashlift::cpu
