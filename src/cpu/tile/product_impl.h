// The matrix product. A part of kernels_impl.h.
#pragma once

#include <cstdint>

#include "cpu/tile/rows_impl.h"

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

// The product of f32 operands. Other products have the same members (pairs_impl.h).
struct F32Product {
  using Element = float;
  using Operand = Float;
  static constexpr int kDepth = 1;  // elements of a row of A, and rows of B, in one step
  // Terms that a call adds to C are first summed separately; a call that writes C starts a new sum after this many
  // terms. A single long sum over all keys had twice the rounding error of eager maths (benchmarks/gradient_errors.py).
  // 0: sums start with C.
  static constexpr int64_t kLongestSum = 64;
  static Operand load(const float* b) { return Vector::load(b); }
  static Operand broadcast(const float* a) { return Vector::set(*a); }
  static Float add(Float sum, Operand a, Operand b) { return Vector::fma(a, b, sum); }
  // Computes as many rows as it can before the vectors compute the others; returns their number.
  static int64_t multiply_tiles(int64_t, int, int64_t, const float*, int64_t, const float*, int64_t, float*, int64_t,
                                bool) {
    return 0;
  }
};

// kTransposed: A is stored as its transpose, depth x rows.
template <typename Product, int kRows, int kVectors, bool kTransposed>
void multiply_group(int64_t depth, const typename Product::Element* a, int64_t a_stride,
                    const typename Product::Element* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                    PrefetchQueue& prefetches) {
  constexpr bool kApart = Product::kLongestSum > 0;
  Float acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = accumulate && !kApart ? Vector::load(c + r * c_stride + v * kLanes) : Vector::zero();
    }
  }
  for (int64_t k = 0; k < depth;) {
    bring_lines_near(prefetches);
    const int64_t end = depth - k < kPrefetchSteps * Product::kDepth ? depth : k + kPrefetchSteps * Product::kDepth;
    for (; k < end; k += Product::kDepth) {
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
      b += b_stride * Product::kDepth;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* const sum = c + r * c_stride + v * kLanes;
      Vector::store(sum, accumulate && kApart ? Vector::add(Vector::load(sum), acc[r][v]) : acc[r][v]);
    }
  }
}

// A product that adds to C is a single sum: masks may remove its first terms, which must not change where sums end.
template <typename Product, int kRows, int kVectors, bool kTransposed>
void multiply_sums(int64_t depth, const typename Product::Element* a, int64_t a_stride,
                   const typename Product::Element* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                   PrefetchQueue& prefetches) {
  const bool is_cut = Product::kLongestSum > 0 && !accumulate;
  int64_t left = depth;
  do {
    const int64_t terms = is_cut && left > Product::kLongestSum ? Product::kLongestSum : left;
    multiply_group<Product, kRows, kVectors, kTransposed>(terms, a, a_stride, b, b_stride, c, c_stride, accumulate,
                                                          prefetches);
    a += terms * (kTransposed ? a_stride : 1);
    b += terms * b_stride;
    left -= terms;
    accumulate = true;
  } while (left > 0);
}

template <typename Product, int kRows, int kVectors, bool kTransposed>
void multiply_rest(int64_t rows, int64_t depth, const typename Product::Element* a, int64_t a_stride,
                   const typename Product::Element* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                   PrefetchQueue& prefetches) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      multiply_sums<Product, kRows, kVectors, kTransposed>(depth, a, a_stride, b, b_stride, c, c_stride, accumulate,
                                                           prefetches);
    } else {
      multiply_rest<Product, kRows - 1, kVectors, kTransposed>(rows, depth, a, a_stride, b, b_stride, c, c_stride,
                                                               accumulate, prefetches);
    }
  }
}

template <typename Product, int kVectors, bool kTransposed>
void multiply_panel(int64_t rows, int64_t depth, const typename Product::Element* a, int64_t a_stride,
                    const typename Product::Element* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                    PrefetchQueue& prefetches) {
  // Narrow panels have more rows at a time, so that there are enough independent sums to hide the multiply-add's
  // latency.
  constexpr int kRows = Vector::kAccumulators / kVectors < 12 ? Vector::kAccumulators / kVectors : 12;
  const int64_t row_step = kTransposed ? 1 : a_stride;
  int64_t r = 0;
  if constexpr (!kTransposed) {
    r = Product::multiply_tiles(rows, kVectors, depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
  }
  for (; r + kRows <= rows; r += kRows) {
    multiply_sums<Product, kRows, kVectors, kTransposed>(depth, a + r * row_step, a_stride, b, b_stride,
                                                         c + r * c_stride, c_stride, accumulate, prefetches);
  }
  multiply_rest<Product, kRows - 1, kVectors, kTransposed>(rows - r, depth, a + r * row_step, a_stride, b, b_stride,
                                                           c + r * c_stride, c_stride, accumulate, prefetches);
}

template <typename Product, bool kTransposed>
void multiply_any(int64_t rows, int vectors, int64_t depth, const typename Product::Element* a, int64_t a_stride,
                  const typename Product::Element* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                  PrefetchQueue& prefetches) {
  const auto multiply_vectors = [&]<int kVectors>() {
    multiply_panel<Product, kVectors, kTransposed>(rows, depth, a, a_stride, b, b_stride, c, c_stride, accumulate,
                                                   prefetches);
  };
  if (vectors == 1) {
    multiply_vectors.template operator()<1>();
  } else if (vectors == 2) {
    multiply_vectors.template operator()<2>();
  } else if constexpr (Vector::kPanelVectors > 2) {
    if (vectors == 3) {
      multiply_vectors.template operator()<3>();
    } else {
      multiply_vectors.template operator()<4>();
    }
  }
}

void multiply(int64_t rows, int vectors, int64_t depth, const float* a, int64_t a_stride, const float* b,
              int64_t b_stride, float* c, int64_t c_stride, bool accumulate, PrefetchQueue& prefetches) {
  [[maybe_unused]] const Vector::FlushDenormals flush;
  multiply_any<F32Product, false>(rows, vectors, depth, a, a_stride, b, b_stride, c, c_stride, accumulate, prefetches);
}

void multiply_transposed(int64_t rows, int vectors, int64_t depth, const float* a, int64_t a_stride, const float* b,
                         int64_t b_stride, float* c, int64_t c_stride, PrefetchQueue& prefetches) {
  [[maybe_unused]] const Vector::FlushDenormals flush;
  multiply_any<F32Product, true>(rows, vectors, depth, a, a_stride, b, b_stride, c, c_stride, true, prefetches);
}

}  // namespace
}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
