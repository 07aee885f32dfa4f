// Products of few rows with keys and values that are not packed. A part of kernels_impl.h.
#pragma once

#include <cstdint>

#include "cpu/tile/rows_impl.h"

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

// The rows whose sums a micro-kernel keeps in registers.
constexpr int kRegisterRows = kLanes == 16 ? 4 : 2;

// Prefetches the cache line of this element of `next`, if the element is the first one in its line.
template <DType kType>
void prefetch_line(const MatrixView& next, int64_t row, int64_t column) {
  if (next.data != nullptr && column * kElementSize<kType> % 64 == 0) {
    Vector::prefetch(element<kType>(next, row, column));
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
      Vector::store_sums(s + r * s_stride + key, acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
    } else {
      s[r * s_stride + key] = Vector::reduce_add(acc[r][0]);
    }
  }
}

// Calls group<count>(row, next) for all rows, kRows at a time as long as possible. Only the first group prefetches
// `next`.
template <int kRows, typename Group>
void in_row_groups(int64_t row, int64_t rows, MatrixView next, const Group& group) {
  if constexpr (kRows > 0) {
    for (; row + kRows <= rows; row += kRows) {
      group.template operator()<kRows>(row, next);
      next.data = nullptr;
    }
    in_row_groups<kRows - 1>(row, rows, next, group);
  }
}

void dot_rows(const MatrixView& keys, int64_t count, int64_t depth, const float* q, int64_t q_stride, int64_t rows,
              float* s, int64_t s_stride, const MatrixView& next) {
  for_dtype(keys.dtype, [&]<DType kType>() {
    in_row_groups<kRegisterRows>(0, rows, next, [&]<int kRows>(int64_t row, const MatrixView& near) {
      int64_t key = 0;
      for (; key + 4 <= count; key += 4) {
        dot_group<kType, kRows, 4>(keys, key, depth, q + row * q_stride, q_stride, s + row * s_stride, s_stride, near);
      }
      for (; key < count; ++key) {
        dot_group<kType, kRows, 1>(keys, key, depth, q + row * q_stride, q_stride, s + row * s_stride, s_stride, near);
      }
    });
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

void add_rows(const MatrixView& values, int64_t count, int64_t columns, const float* p, int64_t p_stride, int64_t rows,
              float* o, int64_t o_stride, const MatrixView& next) {
  for_dtype(values.dtype, [&]<DType kType>() {
    in_row_groups<kRegisterRows>(0, rows, next, [&]<int kRows>(int64_t row, const MatrixView& near) {
      int64_t c = 0;
      for (; c + 4 * kLanes <= columns; c += 4 * kLanes) {
        add_group<kType, kRows, 4>(values, count, c, columns - c, p + row * p_stride, p_stride, o + row * o_stride,
                                   o_stride, near);
      }
      for (; c < columns; c += kLanes) {
        add_group<kType, kRows, 1>(values, count, c, columns - c, p + row * p_stride, p_stride, o + row * o_stride,
                                   o_stride, near);
      }
    });
  });
}

}  // namespace
}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
