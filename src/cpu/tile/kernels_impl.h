// The kernels of kernels.h over a Vector type. Included by one source file per instruction set, which defines
// FLASHLIFT_ISA_NAMESPACE and includes the vector type first. Nothing here may call an inline function of another
// header: the linker could then keep the copy that this instruction set compiled, for everybody.
#pragma once

#include <cstdint>

#include "cpu/tile/kernels.h"
#include "cpu/tile/philox.h"

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

using Float = Vector::Float;
constexpr int kLanes = Vector::kLanes;
constexpr float kMinusInfinity = -__builtin_inff();

// ---- Reading the caller's memory ----------------------------------------------------------------------------------

// The first n of kLanes consecutive elements, the rest 0.
template <DType kType>
Float load_elements(const void* p, int64_t n) {
  if constexpr (kType == DType::kF32) {
    const float* f = static_cast<const float*>(p);
    return n >= kLanes ? Vector::load(f) : Vector::load_first(f, n);
  } else {
    return n >= kLanes ? Vector::load_half(p, kType) : Vector::load_half_first(p, n, kType);
  }
}

template <DType kType>
constexpr int64_t kElementSize = kType == DType::kF32 ? 4 : 2;

template <DType kType>
const char* element(const MatrixView& m, int64_t row, int64_t column) {
  return static_cast<const char*>(m.data) + (row * m.row_stride + column * m.column_stride) * kElementSize<kType>;
}

// kLanes or fewer elements `stride` apart, the rest 0.
template <DType kType>
Float load_strided(const char* p, int64_t stride, int64_t n) {
  alignas(64) float lanes[kLanes] = {};
  if constexpr (kType == DType::kF32) {
    for (int64_t i = 0; i < n; ++i) {
      lanes[i] = *reinterpret_cast<const float*>(p + i * stride * 4);
    }
    return Vector::load(lanes);
  } else {
    alignas(64) uint16_t halves[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) {
      halves[i] = *reinterpret_cast<const uint16_t*>(p + i * stride * 2);
    }
    return Vector::load_half(halves, kType);
  }
}

template <DType kType>
void convert_rows_typed(const MatrixView& src, int64_t rows, int64_t columns, float scale, float* dst,
                        int64_t dst_stride) {
  const Float factor = Vector::set(scale);
  for (int64_t r = 0; r < rows; ++r) {
    float* out = dst + r * dst_stride;
    for (int64_t c = 0; c < dst_stride; c += kLanes) {
      const int64_t n = columns - c < kLanes ? columns - c : kLanes;
      Float x = Vector::zero();
      if (n > 0) {
        x = src.column_stride == 1 ? load_elements<kType>(element<kType>(src, r, c), n)
                                   : load_strided<kType>(element<kType>(src, r, c), src.column_stride, n);
      }
      x = Vector::mul(x, factor);
      if (dst_stride - c >= kLanes) {
        Vector::store(out + c, x);
      } else {
        Vector::store_first(out + c, x, dst_stride - c);
      }
    }
  }
}

template <DType kType>
void pack_transposed_typed(const MatrixView& src, int64_t rows, int64_t columns, float* dst, int64_t dst_stride) {
  if (src.column_stride != 1) {
    // Read down the columns: contiguous when the caller holds the transpose, element by element otherwise.
    const MatrixView t{src.data, src.dtype, src.column_stride, src.row_stride};
    convert_rows_typed<kType>(t, columns, rows, 1.0f, dst, dst_stride);
    return;
  }
  for (int64_t r = 0; r < dst_stride; r += kLanes) {
    for (int64_t c = 0; c < columns; c += kLanes) {
      const int64_t n = columns - c < kLanes ? columns - c : kLanes;
      Float block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        block[i] = r + i < rows ? load_elements<kType>(element<kType>(src, r + i, c), n) : Vector::zero();
      }
      Vector::transpose(block);
      for (int i = 0; i < kLanes; ++i) {
        if (i < n) {
          Vector::store(dst + (c + i) * dst_stride + r, block[i]);
        }
      }
    }
  }
}

// body.operator()<kType>() for the element type of a matrix: f32, bf16 or f16.
template <typename Body>
void for_dtype(DType dtype, const Body& body) {
  if (dtype == DType::kF32) {
    body.template operator()<DType::kF32>();
  } else if (dtype == DType::kBF16) {
    body.template operator()<DType::kBF16>();
  } else {
    body.template operator()<DType::kF16>();
  }
}

void convert_rows(const MatrixView& src, int64_t rows, int64_t columns, float scale, float* dst, int64_t dst_stride) {
  for_dtype(src.dtype, [&]<DType kType>() { convert_rows_typed<kType>(src, rows, columns, scale, dst, dst_stride); });
}

void pack_transposed(const MatrixView& src, int64_t rows, int64_t columns, float* dst, int64_t dst_stride) {
  for_dtype(src.dtype, [&]<DType kType>() { pack_transposed_typed<kType>(src, rows, columns, dst, dst_stride); });
}

void prefetch(const MatrixView& src, int64_t rows, int64_t columns) {
  const int64_t size = src.dtype == DType::kF32 ? 4 : 2;
  const bool by_row = src.column_stride == 1;
  if (!by_row && src.row_stride != 1) {
    return;
  }
  const int64_t lines = by_row ? rows : columns;
  const int64_t bytes = (by_row ? columns : rows) * size;
  const int64_t stride = (by_row ? src.row_stride : src.column_stride) * size;
  for (int64_t i = 0; i < lines; ++i) {
    const char* line = static_cast<const char*>(src.data) + i * stride;
    for (int64_t at = 0; at < bytes; at += 64) {
      _mm_prefetch(line + at, _MM_HINT_T1);
    }
  }
}

bool all_finite(const float* x, int64_t count) {
  // 0 times an infinity or NaN is NaN, and stays.
  Float sum0 = Vector::zero();
  Float sum1 = Vector::zero();
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    sum0 = Vector::fma(Vector::load(x + i), Vector::zero(), sum0);
    sum1 = Vector::fma(Vector::load(x + i + kLanes), Vector::zero(), sum1);
  }
  if (i < count) {
    sum0 = Vector::fma(Vector::load(x + i), Vector::zero(), sum0);
  }
  return Vector::reduce_add(Vector::add(sum0, sum1)) == 0;
}

// ---- The matrix product -------------------------------------------------------------------------------------------

// How f32 operands are multiplied. A product of another kind has the same members (pairs_impl.h).
struct F32Product {
  using Element = float;
  using Operand = Float;
  static constexpr int kDepth = 1;  // elements of a row of A, and rows of B, in one step
  static Operand load(const float* b) { return Vector::load(b); }
  static Operand broadcast(const float* a) { return Vector::set(*a); }
  static Float add(Float sum, Operand a, Operand b) { return Vector::fma(a, b, sum); }
  // Takes as many rows as it likes before the vectors do.
  static int64_t multiply_tiles(int64_t, int, int64_t, const float*, int64_t, const float*, float*, int64_t, bool) {
    return 0;
  }
};

// kTransposed: A is stored as its transpose, depth x rows.
template <typename Product, int kRows, int kVectors, bool kTransposed>
void multiply_group(int64_t depth, const typename Product::Element* a, int64_t a_stride,
                    const typename Product::Element* b, float* c, int64_t c_stride, bool accumulate) {
  Float acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = accumulate ? Vector::load(c + r * c_stride + v * kLanes) : Vector::zero();
    }
  }
  for (int64_t k = 0; k < depth; k += Product::kDepth) {
    typename Product::Operand column[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      column[v] = Product::load(b + v * kLanes * Product::kDepth);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename Product::Operand x = Product::broadcast(a + (kTransposed ? r : r * a_stride));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = Product::add(acc[r][v], x, column[v]);
      }
    }
    a += kTransposed ? a_stride : Product::kDepth;
    b += kVectors * kLanes * Product::kDepth;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Vector::store(c + r * c_stride + v * kLanes, acc[r][v]);
    }
  }
}

template <typename Product, int kRows, int kVectors, bool kTransposed>
void multiply_rest(int64_t rows, int64_t depth, const typename Product::Element* a, int64_t a_stride,
                   const typename Product::Element* b, float* c, int64_t c_stride, bool accumulate) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      multiply_group<Product, kRows, kVectors, kTransposed>(depth, a, a_stride, b, c, c_stride, accumulate);
    } else {
      multiply_rest<Product, kRows - 1, kVectors, kTransposed>(rows, depth, a, a_stride, b, c, c_stride, accumulate);
    }
  }
}

template <typename Product, int kVectors, bool kTransposed>
void multiply_panel(int64_t rows, int64_t depth, const typename Product::Element* a, int64_t a_stride,
                    const typename Product::Element* b, float* c, int64_t c_stride, bool accumulate) {
  // Narrow panels take more rows, so that enough independent sums hide the latency of the multiply-add.
  constexpr int kRows = Vector::kAccumulators / kVectors < 12 ? Vector::kAccumulators / kVectors : 12;
  const int64_t row_step = kTransposed ? 1 : a_stride;
  int64_t r = kTransposed ? 0 : Product::multiply_tiles(rows, kVectors, depth, a, a_stride, b, c, c_stride, accumulate);
  for (; r + kRows <= rows; r += kRows) {
    multiply_group<Product, kRows, kVectors, kTransposed>(depth, a + r * row_step, a_stride, b, c + r * c_stride,
                                                          c_stride, accumulate);
  }
  multiply_rest<Product, kRows - 1, kVectors, kTransposed>(rows - r, depth, a + r * row_step, a_stride, b,
                                                           c + r * c_stride, c_stride, accumulate);
}

template <typename Product, bool kTransposed>
void multiply_any(int64_t rows, int vectors, int64_t depth, const typename Product::Element* a, int64_t a_stride,
                  const typename Product::Element* b, float* c, int64_t c_stride, bool accumulate) {
  if (vectors == 1) {
    multiply_panel<Product, 1, kTransposed>(rows, depth, a, a_stride, b, c, c_stride, accumulate);
  } else if (vectors == 2) {
    multiply_panel<Product, 2, kTransposed>(rows, depth, a, a_stride, b, c, c_stride, accumulate);
  } else if constexpr (Vector::kPanelVectors > 2) {
    if (vectors == 3) {
      multiply_panel<Product, 3, kTransposed>(rows, depth, a, a_stride, b, c, c_stride, accumulate);
    } else {
      multiply_panel<Product, 4, kTransposed>(rows, depth, a, a_stride, b, c, c_stride, accumulate);
    }
  }
}

// Takes and leaves numbers below 2^-126 as zeros while it lives. A processor takes some hundred cycles for a
// multiply-add that gives such a number, and sums of small probabilities can be full of them: with ALiBi the backward
// pass took four times as long.
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kDenormalsAreZero = 0x40;
  unsigned before_;
};

void multiply(int64_t rows, int vectors, int64_t depth, const float* a, int64_t a_stride, const float* b, float* c,
              int64_t c_stride, bool accumulate) {
  const FlushDenormals flush;
  multiply_any<F32Product, false>(rows, vectors, depth, a, a_stride, b, c, c_stride, accumulate);
}

void multiply_transposed(int64_t rows, int vectors, int64_t depth, const float* a, int64_t a_stride, const float* b,
                         float* c, int64_t c_stride) {
  const FlushDenormals flush;
  multiply_any<F32Product, true>(rows, vectors, depth, a, a_stride, b, c, c_stride, true);
}

// ---- Few rows: keys and values as they lie ------------------------------------------------------------------------

constexpr int kDirectRows = kLanes == 16 ? 4 : 2;

// Brings near the cache line that holds this element, if the element is the line's first of `next`'s rows.
template <DType kType>
void prefetch_line(const MatrixView& next, int64_t row, int64_t column) {
  if (next.data != nullptr && column * kElementSize<kType> % 64 == 0) {
    _mm_prefetch(element<kType>(next, row, column), _MM_HINT_T1);
  }
}

// s[r][key + i] = <q[r], keys[key + i]> for kKeys keys.
template <DType kType, int kRows, int kKeys>
void dot_group(const MatrixView& keys, int64_t key, int64_t depth, const float* q, int64_t q_stride, float* s,
               int64_t s_stride, const MatrixView& next) {
  Float acc[kRows][kKeys];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kKeys; ++i) {
      acc[r][i] = Vector::zero();
    }
  }
  for (int64_t c = 0; c < depth; c += kLanes) {
    const int64_t n = depth - c;
    Float column[kKeys];
#pragma GCC unroll 4
    for (int i = 0; i < kKeys; ++i) {
      column[i] = load_elements<kType>(element<kType>(keys, key + i, c), n);
      prefetch_line<kType>(next, key + i, c);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Float x = load_elements<DType::kF32>(q + r * q_stride + c, n);
#pragma GCC unroll 4
      for (int i = 0; i < kKeys; ++i) {
        acc[r][i] = Vector::fma(x, column[i], acc[r][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kKeys == 4) {
      _mm_storeu_ps(s + r * s_stride + key, Vector::reduce_add4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]));
    } else {
      s[r * s_stride + key] = Vector::reduce_add(acc[r][0]);
    }
  }
}

template <DType kType, int kRows>
void dot_rows_typed(const MatrixView& keys, int64_t count, int64_t depth, const float* q, int64_t q_stride,
                    int64_t rows, float* s, int64_t s_stride, MatrixView next) {
  if constexpr (kRows > 0) {
    for (; rows >= kRows; rows -= kRows, q += kRows * q_stride, s += kRows * s_stride) {
      int64_t key = 0;
      for (; key + 4 <= count; key += 4) {
        dot_group<kType, kRows, 4>(keys, key, depth, q, q_stride, s, s_stride, next);
      }
      for (; key < count; ++key) {
        dot_group<kType, kRows, 1>(keys, key, depth, q, q_stride, s, s_stride, next);
      }
      next.data = nullptr;
    }
    dot_rows_typed<kType, kRows - 1>(keys, count, depth, q, q_stride, rows, s, s_stride, next);
  }
}

void dot_rows(const MatrixView& keys, int64_t count, int64_t depth, const float* q, int64_t q_stride, int64_t rows,
              float* s, int64_t s_stride, const MatrixView& next) {
  for_dtype(keys.dtype, [&]<DType kType>() {
    dot_rows_typed<kType, kDirectRows>(keys, count, depth, q, q_stride, rows, s, s_stride, next);
  });
}

// Columns [column, column + n) of o, at most kVectors vectors.
template <DType kType, int kRows, int kVectors>
void add_group(const MatrixView& values, int64_t count, int64_t column, int64_t n, const float* p, int64_t p_stride,
               float* o, int64_t o_stride, const MatrixView& next) {
  Float acc[kRows][kVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = Vector::load(o + r * o_stride + column + v * kLanes);
    }
  }
  for (int64_t key = 0; key < count; ++key) {
    Float row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      row[v] = load_elements<kType>(element<kType>(values, key, column + v * kLanes), n - v * kLanes);
      prefetch_line<kType>(next, key, column + v * kLanes);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Float x = Vector::set(p[r * p_stride + key]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = Vector::fma(x, row[v], acc[r][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Vector::store(o + r * o_stride + column + v * kLanes, acc[r][v]);
    }
  }
}

template <DType kType, int kRows>
void add_rows_typed(const MatrixView& values, int64_t count, int64_t columns, const float* p, int64_t p_stride,
                    int64_t rows, float* o, int64_t o_stride, MatrixView next) {
  if constexpr (kRows > 0) {
    for (; rows >= kRows; rows -= kRows, p += kRows * p_stride, o += kRows * o_stride) {
      int64_t c = 0;
      for (; c + 4 * kLanes <= columns; c += 4 * kLanes) {
        add_group<kType, kRows, 4>(values, count, c, columns - c, p, p_stride, o, o_stride, next);
      }
      for (; c < columns; c += kLanes) {
        add_group<kType, kRows, 1>(values, count, c, columns - c, p, p_stride, o, o_stride, next);
      }
      next.data = nullptr;
    }
    add_rows_typed<kType, kRows - 1>(values, count, columns, p, p_stride, rows, o, o_stride, next);
  }
}

void add_rows(const MatrixView& values, int64_t count, int64_t columns, const float* p, int64_t p_stride, int64_t rows,
              float* o, int64_t o_stride, const MatrixView& next) {
  for_dtype(values.dtype, [&]<DType kType>() {
    add_rows_typed<kType, kDirectRows>(values, count, columns, p, p_stride, rows, o, o_stride, next);
  });
}

// ---- The softmax --------------------------------------------------------------------------------------------------

template <bool kScaled>
void row_max_typed(float* s, int64_t s_stride, int64_t rows, int64_t columns, float scale, float* maxima) {
  const Float factor = Vector::set(scale);
  for (int64_t r = 0; r < rows; ++r) {
    float* row = s + r * s_stride;
    Float m = Vector::set(kMinusInfinity);
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
      Float x = Vector::load(row + c);
      if constexpr (kScaled) {
        x = Vector::mul(x, factor);
        Vector::store(row + c, x);
      }
      m = Vector::max(x, m);
    }
    if (c < columns) {
      const Float scaled = Vector::mul(Vector::load(row + c), factor);
      const Float x = Vector::keep_first(scaled, columns - c, Vector::set(kMinusInfinity));
      Vector::store(row + c, x);
      m = Vector::max(x, m);
    }
    maxima[r] = Vector::reduce_max(m);
  }
}

void row_max(float* s, int64_t s_stride, int64_t rows, int64_t columns, float scale, float* maxima) {
  if (scale == 1.0f) {
    row_max_typed<false>(s, s_stride, rows, columns, scale, maxima);
  } else {
    row_max_typed<true>(s, s_stride, rows, columns, scale, maxima);
  }
}

float exp2_scalar(float x) { return Vector::reduce_max(Vector::exp2_nonpositive(Vector::set(x))); }

// The exponentials in place of the scores.
struct Exponentials {
  static void store(float* row, int64_t c, Float p) { Vector::store(row + c, p); }
  static void finish(float*, int64_t) {}
};

// Replaces a row's scores by exponentials, which Output stores, and returns their sum. kLarge: see is_large_score().
template <typename Output, bool kLarge>
float exponentials(float* row, int64_t columns, float offset) {
  const Float log2e = Vector::set(kLog2E);
  const Float shift = Vector::set(offset);
  const auto exponential = [&](Float x) {
    return Vector::exp2_nonpositive(kLarge ? Vector::mul(Vector::sub(x, shift), log2e) : Vector::fms(x, log2e, shift));
  };
  Float sum0 = Vector::zero();
  Float sum1 = Vector::zero();
  int64_t c = 0;
  for (; c + 2 * kLanes <= columns; c += 2 * kLanes) {
    const Float p0 = exponential(Vector::load(row + c));
    const Float p1 = exponential(Vector::load(row + c + kLanes));
    Output::store(row, c, p0);
    Output::store(row, c + kLanes, p1);
    sum0 = Vector::add(sum0, p0);
    sum1 = Vector::add(sum1, p1);
  }
  if (c < columns) {
    const Float p = exponential(Vector::load(row + c));
    Output::store(row, c, p);
    sum0 = Vector::add(sum0, p);
  }
  Output::finish(row, columns);
  return Vector::reduce_add(Vector::add(sum0, sum1));
}

// A row whose maximum is +inf: inf - inf would make every sum NaN, but lse must tell +inf from NaN.
float sum_of_infinite_row(float* row, int64_t columns) {
  float sum = 0;
  for (int64_t c = 0; c < columns; ++c) {
    sum = row[c] != row[c] ? row[c] : sum;
    row[c] = 0;
  }
  return sum;
}

// log2 of what the sums so far are to be multiplied by when the maximum grows: the difference of the two rows'
// references, each of which is rounded or not, see RowState.
float shrink_exponent(float before, bool before_large, float m, bool large) {
  if (before_large) {
    return large ? (before - m) * kLog2E : __builtin_fmaf(before, kLog2E, -(m * kLog2E));
  }
  const float shift = before * kLog2E;
  return large ? -__builtin_fmaf(m, kLog2E, -shift) : shift - m * kLog2E;
}

template <typename Output>
void softmax_to(float* s, int64_t s_stride, int64_t rows, int64_t columns, const float* maxima, RowState* state,
                float* o, int64_t o_stride, int64_t o_columns) {
  for (int64_t r = 0; r < rows; ++r) {
    float* row = s + r * s_stride;
    const float before = state[r].max;
    const float m = maxima[r] > before ? maxima[r] : before;
    float sum;
    float shrink = 1;
    const bool large = !(m > -kLargeScore && m < kLargeScore);
    if (!large) {
      sum = exponentials<Output, false>(row, columns, m * kLog2E);
    } else if (m == -kMinusInfinity) {
      sum = sum_of_infinite_row(row, columns);
      Output::finish(row, columns);  // all-zero bits are zeros of every dtype
    } else {
      // With nothing but masked keys so far, -inf - -inf must not become NaN: all exponentials are 0 instead.
      sum = exponentials<Output, true>(row, columns, m == kMinusInfinity ? 0.0f : m);
    }
    if (m != before) {
      const bool before_large = !(before > -kLargeScore && before < kLargeScore);
      shrink = exp2_scalar(shrink_exponent(before, before_large, m, large));
    }
    if (m != before) {
      const Float factor = Vector::set(shrink);
      float* out = o + r * o_stride;
      for (int64_t d = 0; d < o_columns; d += kLanes) {
        Vector::store(out + d, Vector::mul(Vector::load(out + d), factor));
      }
      state[r].max = m;
    }
    state[r].sum = state[r].sum * shrink + sum;
  }
}

// ---- Dropout ------------------------------------------------------------------------------------------------------

// Philox of kLanes counters that differ in their first word; each of the four result words is a vector.
void philox(Vector::Integer (&words)[4], uint64_t seed) {
  const Vector::Integer first_multiplier = Vector::set_integer(kPhiloxMultipliers[0]);
  const Vector::Integer second_multiplier = Vector::set_integer(kPhiloxMultipliers[1]);
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 7
  for (int round = 0; round < kPhiloxRounds; ++round) {
    Vector::Integer high0;
    Vector::Integer low0;
    Vector::Integer high2;
    Vector::Integer low2;
    Vector::multiply_wide(words[0], first_multiplier, high0, low0);
    Vector::multiply_wide(words[2], second_multiplier, high2, low2);
    words[0] = Vector::xor3(high2, words[1], Vector::set_integer(key0));
    words[1] = low2;
    words[2] = Vector::xor3(high0, words[3], Vector::set_integer(key1));
    words[3] = low0;
    key0 += kPhiloxKeySteps[0];
    key1 += kPhiloxKeySteps[1];
  }
}

// One counter stands for keys 16 apart, so that a vector of counters gives four vectors of neighbouring keys.
void drop_out(float* s, int64_t columns, const Dropout& dropout, const DropoutRow& row, int64_t kv_begin) {
  const Vector::Integer threshold = Vector::set_integer(dropout.threshold);
  for (int64_t block = 0; block < columns; block += 64) {
    for (int64_t lane = 0; lane < 16 && block + lane < columns; lane += kLanes) {
      Vector::Integer words[4] = {Vector::steps(static_cast<uint32_t>((kv_begin + block) / 4 + lane)),
                                  Vector::set_integer(static_cast<uint32_t>(row.q)),
                                  Vector::set_integer(static_cast<uint32_t>(row.h)),
                                  Vector::set_integer(static_cast<uint32_t>(row.b))};
      philox(words, dropout.seed);
      for (int64_t i = 0; i < 4 && block + 16 * i + lane < columns; ++i) {
        float* at = s + block + 16 * i + lane;
        Vector::store(at, Vector::keep_at_least(Vector::load(at), words[i], threshold));
      }
    }
  }
}

// ---- The backward pass --------------------------------------------------------------------------------------------

// The exponentials are those of score_gradients(), so that the only key of a row has a probability of exactly 1.
void sum_rows(const float* s, const float* dp, int64_t stride, int64_t rows, int64_t columns, const float* maxima,
              float* sums, float* weighted) {
  const Float log2e = Vector::set(kLog2E);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = s + r * stride;
    const float* dp_row = dp + r * stride;
    // -inf - -inf must not become NaN.
    const Float shift = Vector::set(maxima[r] == kMinusInfinity ? 0.0f : maxima[r]);
    const auto exponential = [&](int64_t c) {
      return Vector::exp2_nonpositive(Vector::mul(Vector::sub(Vector::load(row + c), shift), log2e));
    };
    Float sum = Vector::zero();
    Float dot = Vector::zero();
    for (int64_t c = 0; c < columns; c += kLanes) {
      const Float e = exponential(c);
      sum = Vector::add(sum, e);
      dot = Vector::fma(e, Vector::load(dp_row + c), dot);
    }
    sums[r] = Vector::reduce_add(sum);
    weighted[r] = Vector::reduce_add(dot);
    if (weighted[r] - weighted[r] == 0) {
      continue;
    }
    weighted[r] = 0;
    for (int64_t c = 0; c < columns; c += kLanes) {
      alignas(64) float e[kLanes];
      Vector::store(e, exponential(c));
      for (int64_t i = 0; i < kLanes; ++i) {
        weighted[r] = e[i] != 0 ? __builtin_fmaf(e[i], dp_row[c + i], weighted[r]) : weighted[r];
      }
    }
  }
}

void score_gradients(float* s, float* ds, int64_t stride, int64_t rows, int64_t columns, float scale,
                     const RowGradient* states) {
  const Float factor = Vector::set(scale);
  const Float log2e = Vector::set(kLog2E);
  for (int64_t r = 0; r < rows; ++r) {
    float* p_row = s + r * stride;
    float* ds_row = ds + r * stride;
    const Float shift = Vector::set(states[r].shift);
    const Float weight = Vector::set(states[r].factor);
    const Float delta = Vector::set(states[r].delta);
    const Float least = Vector::set(kLeastProbability / states[r].factor);
    for (int64_t c = 0; c < columns; c += kLanes) {
      // Subtracted before the factor log2(e): a score and the row's lse are close to each other.
      const Float x = Vector::mul(Vector::sub(Vector::mul(Vector::load(p_row + c), factor), shift), log2e);
      Float p = Vector::mul(Vector::zero_if_less(Vector::exp2_nonpositive(x), least), weight);
      if (columns - c < kLanes) {
        p = Vector::keep_first(p, columns - c, Vector::zero());
      }
      const Float dp = Vector::sub(Vector::load(ds_row + c), delta);
      Vector::store(p_row + c, p);
      Float d = Vector::mul(p, dp);
      if (columns - c < kLanes) {
        d = Vector::keep_first(d, columns - c, Vector::zero());
      }
      Vector::store(ds_row + c, d);
    }
  }
}

void store_row(const float* src, int64_t columns, float factor, void* dst, DType dtype, int64_t dst_stride) {
  const Float scale = Vector::set(factor);
  for (int64_t c = 0; c < columns; c += kLanes) {
    const int64_t n = columns - c < kLanes ? columns - c : kLanes;
    const Float x = Vector::mul(Vector::load(src + c), scale);
    if (dtype == DType::kF32) {
      float* out = static_cast<float*>(dst) + c * dst_stride;
      if (dst_stride == 1) {
        Vector::store_first(out, x, n);
        continue;
      }
      alignas(64) float lanes[kLanes];
      Vector::store(lanes, x);
      for (int64_t i = 0; i < n; ++i) {
        out[i * dst_stride] = lanes[i];
      }
    } else {
      uint16_t* out = static_cast<uint16_t*>(dst) + c * dst_stride;
      if (dst_stride == 1) {
        Vector::store_half_first(out, x, n, dtype);
        continue;
      }
      alignas(64) uint16_t lanes[kLanes];
      Vector::store_half_first(lanes, x, kLanes, dtype);
      for (int64_t i = 0; i < n; ++i) {
        out[i * dst_stride] = lanes[i];
      }
    }
  }
}

}  // namespace

#ifdef FLASHLIFT_PAIR_PRODUCT
}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
#include "cpu/tile/pairs_impl.h"
namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {
constexpr const PairKernels* kPairs = &kPairKernels;
}
#else
namespace {
constexpr const PairKernels* kPairs = nullptr;
}
#endif

// Called once this machine is known to have the instruction set.
const TileKernels& kernels();
// NOLINTNEXTLINE(misc-definitions-in-headers): each instruction set has its namespace and one file that includes this
const TileKernels& kernels() {
  static constexpr TileKernels kKernels = {.isa = FLASHLIFT_ISA_VALUE,
                                           .lanes = kLanes,
                                           .panel_width = kLanes * Vector::kPanelVectors,
                                           .convert_rows = convert_rows,
                                           .pack_transposed = pack_transposed,
                                           .prefetch = prefetch,
                                           .all_finite = all_finite,
                                           .multiply = multiply,
                                           .multiply_transposed = multiply_transposed,
                                           .dot_rows = dot_rows,
                                           .add_rows = add_rows,
                                           .row_max = row_max,
                                           .softmax = softmax_to<Exponentials>,
                                           .drop_out = drop_out,
                                           .sum_rows = sum_rows,
                                           .score_gradients = score_gradients,
                                           .store_row = store_row,
                                           .pairs = kPairs};
  return kKernels;
}

}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
