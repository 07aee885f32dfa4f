// Rows of the caller's memory as floats and back, and packing. A part of kernels_impl.h.
#pragma once

#include <cstdint>

#include "cpu/tile/kernels.h"

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

using Float = Vector::Float;
constexpr int kLanes = Vector::kLanes;
constexpr float kMinusInfinity = -__builtin_inff();

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
  const int64_t whole = src.column_stride == 1 ? columns / kLanes * kLanes : 0;  // columns in whole vectors
  for (int64_t r = 0; r < rows; ++r) {
    float* out = dst + r * dst_stride;
    const char* from = element<kType>(src, r, 0);
    for (int64_t c = 0; c < whole; c += kLanes) {
      Vector::store(out + c, Vector::mul(load_elements<kType>(from + c * kElementSize<kType>, kLanes), factor));
    }
    for (int64_t c = whole; c < dst_stride; c += kLanes) {
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
void pack_transposed_typed(const MatrixView& src, int64_t rows, int64_t columns, float scale, float* dst,
                           int64_t dst_stride) {
  if (src.column_stride != 1) {
    // Reads columns of src: contiguous if the caller stores the transpose, otherwise element by element.
    const MatrixView t{src.data, src.dtype, src.column_stride, src.row_stride};
    convert_rows_typed<kType>(t, columns, rows, scale, dst, dst_stride);
    return;
  }
  const Float factor = Vector::set(scale);
  for (int64_t r = 0; r < dst_stride; r += kLanes) {
    for (int64_t c = 0; c < columns; c += kLanes) {
      const int64_t n = columns - c < kLanes ? columns - c : kLanes;
      float* out = dst + c * dst_stride + r;
      Float block[kLanes];
      if (r + kLanes <= rows && n == kLanes) {
        // Addresses are incremented, because those that the general case computes for each row do not fit into the
        // registers.
        const char* from = element<kType>(src, r, c);
        for (int i = 0; i < kLanes; ++i, from += src.row_stride * kElementSize<kType>) {
          block[i] = load_elements<kType>(from, kLanes);
        }
        Vector::transpose(block);
        for (int i = 0; i < kLanes; ++i, out += dst_stride) {
          Vector::store(out, Vector::mul(block[i], factor));
        }
        continue;
      }
      for (int i = 0; i < kLanes; ++i) {
        block[i] = r + i < rows ? load_elements<kType>(element<kType>(src, r + i, c), n) : Vector::zero();
      }
      Vector::transpose(block);
      for (int i = 0; i < kLanes; ++i) {
        if (i < n) {
          Vector::store(out + i * dst_stride, Vector::mul(block[i], factor));
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

void pack_transposed(const MatrixView& src, int64_t rows, int64_t columns, float scale, float* dst,
                     int64_t dst_stride) {
  for_dtype(src.dtype,
            [&]<DType kType>() { pack_transposed_typed<kType>(src, rows, columns, scale, dst, dst_stride); });
}

// Always inlined, because a call inside a product would write all sums to memory.
[[gnu::always_inline]] inline void bring_lines_near(PrefetchQueue& prefetches) {
  int64_t lines = prefetches.rate;
  while (lines > 0 && prefetches.next < prefetches.count) {
    PrefetchQueue::Piece& piece = prefetches.pieces[prefetches.next];
    int64_t at = prefetches.at;
    for (; lines > 0 && at < piece.bytes; --lines, at += 64) {
      Vector::prefetch(piece.data + at);
    }
    prefetches.at = at;
    if (at >= piece.bytes) {
      prefetches.at = 0;
      piece.data += piece.stride;
      prefetches.next += --piece.count == 0 ? 1 : 0;
    }
  }
}

void bring_near(PrefetchQueue& prefetches) { bring_lines_near(prefetches); }

bool all_finite(const float* x, int64_t count) {
  // 0 times an infinity or NaN is NaN, and remains NaN.
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

// The first n of kLanes elements, n > 0, to memory that holds them one after the other.
template <DType kType>
void store_elements(void* p, Float x, int64_t n) {
  if constexpr (kType == DType::kF32) {
    if (n >= kLanes) {
      Vector::store(static_cast<float*>(p), x);
    } else {
      Vector::store_first(static_cast<float*>(p), x, n);
    }
  } else {
    n >= kLanes ? Vector::store_half_first(p, x, kLanes, kType) : Vector::store_half_first(p, x, n, kType);
  }
}

template <DType kType>
void store_row_typed(const float* src, int64_t columns, float factor, char* dst, int64_t dst_stride) {
  const Float scale = Vector::set(factor);
  for (int64_t c = 0; c < columns; c += kLanes) {
    const int64_t n = columns - c < kLanes ? columns - c : kLanes;
    const Float x = Vector::mul(Vector::load(src + c), scale);
    char* out = dst + c * dst_stride * kElementSize<kType>;
    if (dst_stride == 1) {
      store_elements<kType>(out, x, n);
      continue;
    }
    alignas(64) char lanes[kLanes * kElementSize<kType>];
    store_elements<kType>(lanes, x, kLanes);
    for (int64_t i = 0; i < n; ++i) {
      __builtin_memcpy(out + i * dst_stride * kElementSize<kType>, lanes + i * kElementSize<kType>,
                       kElementSize<kType>);
    }
  }
}

void store_row(const float* src, int64_t columns, float factor, void* dst, DType dtype, int64_t dst_stride) {
  for_dtype(dtype,
            [&]<DType kType>() { store_row_typed<kType>(src, columns, factor, static_cast<char*>(dst), dst_stride); });
}

}  // namespace
}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
