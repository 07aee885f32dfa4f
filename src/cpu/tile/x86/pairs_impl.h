// The kernels of pairs.h over AVX-512 registers, for the instruction sets that define FLASHLIFT_PAIR_PRODUCT. A part
// of kernels_impl.h, whose products and softmax it shares.
//
// FLASHLIFT_PAIR_PRODUCT is a header with
//   Float dot(Float sum, __m512i a, __m512i b)   lane i: sum + a[2i] b[2i] + a[2i+1] b[2i+1] over bf16
//   __m256i round_bf16(Float)
//   __m512i round_bf16(Float first, Float second)   the 32 elements one after the other
//   constexpr int kDepthMultiple; void begin_pairs(); void end_pairs();
//   int64_t multiply_tiles(...)                  as many whole groups of rows as the tiles take; 0 without tiles
#pragma once

#include <immintrin.h>

#include "cpu/tile/pairs.h"
#include "cpu/tile/product_impl.h"
#include "cpu/tile/rows_impl.h"
#include "cpu/tile/softmax_impl.h"

#include FLASHLIFT_PAIR_PRODUCT

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

// 32 consecutive or strided elements of a row, those from n on 0.
__m512i load_pairs(const MatrixView& src, int64_t row, int64_t column, int64_t n) {
  const Bf16* p = static_cast<const Bf16*>(src.data) + row * src.row_stride + column * src.column_stride;
  if (src.column_stride == 1) {
    const __mmask32 mask = n >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((1u << n) - 1u);
    return _mm512_maskz_loadu_epi16(mask, p);
  }
  alignas(64) Bf16 elements[32] = {};
  for (int64_t i = 0; i < n && i < 32; ++i) {
    elements[i] = p[i * src.column_stride];
  }
  return _mm512_load_si512(elements);
}

// bf16 times a power of two. Exact, except beyond bf16's range, where scaling in f32 rounds in the same way.
__m512i scale_pairs(__m512i x, Float factor) {
  const Float even = Vector::mul(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), factor);
  const Float odd = Vector::mul(_mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536))), factor);
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  return _mm512_or_si512(low, _mm512_and_si512(_mm512_castps_si512(odd), _mm512_set1_epi32(-65536)));
}

void convert_row_pairs(const MatrixView& src, int64_t rows, int64_t columns, float scale, Bf16* dst,
                       int64_t dst_stride) {
  const Float factor = Vector::set(scale);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < dst_stride; c += 32) {
      const int64_t n = columns - c < 32 ? columns - c : 32;
      __m512i x = n > 0 ? load_pairs(src, r, c, n) : _mm512_setzero_si512();
      if (scale != 1.0f) {
        x = scale_pairs(x, factor);
      }
      const int64_t left = dst_stride - c;
      const __mmask32 mask = left >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((1u << left) - 1u);
      _mm512_mask_storeu_epi16(dst + r * dst_stride + c, mask, x);
    }
  }
}

// Two rows of 16 elements each become 16 pairs.
__m512i interleave(__m256i even, __m256i odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

__m256i load_half_row(const MatrixView& src, int64_t row, int64_t column, int64_t n) {
  const Bf16* p = static_cast<const Bf16*>(src.data) + row * src.row_stride + column * src.column_stride;
  if (src.column_stride == 1) {
    return _mm256_maskz_loadu_epi16(n >= 16 ? __mmask16(0xffff) : Vector::first(n), p);
  }
  alignas(32) Bf16 elements[16] = {};
  for (int64_t i = 0; i < n && i < 16; ++i) {
    elements[i] = p[i * src.column_stride];
  }
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(elements));
}

bool pack_pairs(const MatrixView& src, int64_t rows, int64_t columns, Bf16* dst, int64_t width, int64_t depth) {
  // An exponent of all ones is an infinity or NaN.
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 special = 0;
  for (int64_t k = 0; k < depth; k += 2) {
    for (int64_t c = 0; c < width; c += 16) {
      const int64_t n = columns - c < 16 ? columns - c : 16;
      const __m256i none = _mm256_setzero_si256();
      const __m256i even = k < rows && n > 0 ? load_half_row(src, k, c, n) : none;
      const __m256i odd = k + 1 < rows && n > 0 ? load_half_row(src, k + 1, c, n) : none;
      const __m512i x = interleave(even, odd);
      special = static_cast<__mmask32>(special | _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent));
      _mm512_storeu_si512(dst + k * width + 2 * c, x);
    }
  }
  return special == 0;
}

void pack_transposed_pairs(const MatrixView& src, int64_t rows, int64_t columns, Bf16* dst, int64_t width,
                           int64_t depth) {
  if (src.column_stride != 1) {
    const MatrixView t{src.data, src.dtype, src.column_stride, src.row_stride};
    pack_pairs(t, columns, rows, dst, width, depth);
    return;
  }
  // A pair is as large as an f32, so the transpose of 16 x 16 floats is one of 16 x 16 pairs.
  for (int64_t r = 0; r < width; r += 16) {
    for (int64_t c = 0; c < depth; c += 32) {
      const int64_t n = columns - c < 32 ? columns - c : 32;
      Float block[16];
      for (int i = 0; i < 16; ++i) {
        block[i] = r + i < rows && n > 0 ? _mm512_castsi512_ps(load_pairs(src, r + i, c, n)) : Vector::zero();
      }
      Vector::transpose(block);
      for (int i = 0; i < 16 && c + 2 * i < depth; ++i) {
        _mm512_storeu_ps(dst + (c + 2 * i) * width + 2 * r, block[i]);
      }
    }
  }
}

struct PairProduct {
  using Element = Bf16;
  using Operand = __m512i;
  static constexpr int kDepth = 2;
  static constexpr int64_t kLongestSum = 0;  // like AMX tiles, together with which it computes a product
  static Operand load(const Bf16* b) { return _mm512_loadu_si512(b); }
  static Operand broadcast(const Bf16* a) {
    int32_t pair;
    __builtin_memcpy(&pair, a, sizeof(pair));
    return _mm512_set1_epi32(pair);
  }
  static Float add(Float sum, Operand a, Operand b) { return dot(sum, a, b); }
  // NOLINTNEXTLINE(readability-identifier-naming): called as the function that it stands for
  static constexpr auto multiply_tiles = FLASHLIFT_ISA_NAMESPACE::multiply_tiles;
};

void multiply_pairs(int64_t rows, int vectors, int64_t depth, const Bf16* a, int64_t a_stride, const Bf16* b,
                    int64_t b_stride, float* c, int64_t c_stride, bool accumulate, PrefetchQueue& prefetches) {
  multiply_any<PairProduct, false>(rows, vectors, depth, a, a_stride, b, b_stride, c, c_stride, accumulate, prefetches);
}

// Stores the exponentials of the softmax; see PairKernels::softmax. Writes stay behind reads in the same row. A dot
// product with ones adds exactly the numbers that the product with the values reads.
struct RoundedExponentials {
  void store(float* row, int64_t c, Float p) {
    const __m256i rounded = round_bf16(p);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(reinterpret_cast<Bf16*>(row) + c), rounded);
    sum = dot(sum, _mm512_zextsi256_si512(rounded), ones);
  }
  void store(float* row, int64_t c, Float p0, Float p1) {
    const __m512i rounded = round_bf16(p0, p1);
    _mm512_storeu_si512(reinterpret_cast<Bf16*>(row) + c, rounded);
    sum = dot(sum, rounded, ones);
  }
  static void finish(float* row, int64_t columns) {
    for (int64_t c = columns; c % kDepthMultiple != 0; c += kLanes) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(reinterpret_cast<Bf16*>(row) + c), _mm256_setzero_si256());
    }
  }
  float stored_sum(float) const { return Vector::reduce_add(sum); }

  Float sum = Vector::zero();
  __m512i ones = _mm512_set1_epi16(0x3f80);
};

bool transpose_pairs(const Bf16* src, int64_t src_stride, int64_t rows, int64_t columns, Bf16* dst,
                     int64_t dst_stride) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);  // all ones: an infinity or NaN
  __mmask32 special = 0;
  const MatrixView view{src, DType::kBF16, src_stride, 1};
  const __m256i none = _mm256_setzero_si256();
  for (int64_t r = 0; r < dst_stride; r += 32) {
    const int64_t left = dst_stride - r;
    const __mmask32 mask = left >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((1u << left) - 1u);
    for (int64_t c = 0; c < columns; c += 16) {
      const int64_t n = columns - c < 16 ? columns - c : 16;
      // Two rows side by side are 16 pairs, each of which stays together.
      Float block[16];
      for (int i = 0; i < 16; ++i) {
        const int64_t row = r + 2 * i;
        const __m256i even = row < rows ? load_half_row(view, row, c, n) : none;
        const __m256i odd = row + 1 < rows ? load_half_row(view, row + 1, c, n) : none;
        const __m512i pairs = interleave(even, odd);
        special =
            static_cast<__mmask32>(special | _mm512_cmpeq_epi16_mask(_mm512_and_si512(pairs, exponent), exponent));
        block[i] = _mm512_castsi512_ps(pairs);
      }
      Vector::transpose(block);
      for (int64_t i = 0; i < n; ++i) {
        _mm512_mask_storeu_epi16(dst + (c + i) * dst_stride + r, mask, _mm512_castps_si512(block[i]));
      }
    }
  }
  return special == 0;
}

Float widen_bf16(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

bool split_pairs(const float* x, int64_t count, Bf16* high, Bf16* low) {
  __mmask16 any = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 mask = count - i >= 16 ? __mmask16(0xffff) : Vector::first(count - i);
    const Float whole = _mm512_maskz_loadu_ps(mask, x + i);
    const __m256i upper = round_bf16(whole);
    const Float rest = Vector::sub(whole, widen_bf16(upper));  // NaN where it is infinite or NaN
    const __mmask16 kept = _mm512_cmp_ps_mask(rest, rest, _CMP_ORD_Q);
    const __m256i lower = _mm256_maskz_mov_epi16(kept, round_bf16(rest));
    any = static_cast<__mmask16>(any | _mm256_test_epi16_mask(lower, _mm256_set1_epi16(0x7fff)));
    _mm256_mask_storeu_epi16(high + i, mask, upper);
    _mm256_mask_storeu_epi16(low + i, mask, lower);
  }
  return any != 0;
}

__m256i round_first(const float* p, int64_t n) {
  return round_bf16(n >= 16 ? Vector::load(p) : Vector::load_first(p, n));
}

void round_panel(const float* src, int64_t src_stride, int64_t rows, int64_t columns, Bf16* dst, int64_t width,
                 int64_t depth) {
  const __m256i none = _mm256_setzero_si256();
  for (int64_t k = 0; k < depth; k += 2) {
    const float* from = src + k * src_stride;
    for (int64_t c = 0; c < width; c += 16) {
      const int64_t n = columns - c;
      const __m256i even = k < rows && n > 0 ? round_first(from + c, n) : none;
      const __m256i odd = k + 1 < rows && n > 0 ? round_first(from + src_stride + c, n) : none;
      _mm512_storeu_si512(dst + k * width + 2 * c, interleave(even, odd));
    }
  }
}

void round_rows(const float* src, int64_t src_stride, int64_t rows, int64_t columns, Bf16* dst, int64_t dst_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < dst_stride; c += 16) {
      const int64_t left = dst_stride - c;
      const __mmask16 mask = left >= 16 ? __mmask16(0xffff) : Vector::first(left);
      const __m256i x = columns > c ? round_first(src + r * src_stride + c, columns - c) : _mm256_setzero_si256();
      _mm256_mask_storeu_epi16(dst + r * dst_stride + c, mask, x);
    }
  }
}

constexpr PairKernels kPairKernels = {.depth_multiple = kDepthMultiple,
                                      .convert_rows = convert_row_pairs,
                                      .pack_transposed = pack_transposed_pairs,
                                      .pack = pack_pairs,
                                      .multiply = multiply_pairs,
                                      .softmax = softmax_to<RoundedExponentials>,
                                      .transpose = transpose_pairs,
                                      .split = split_pairs,
                                      .round_panel = round_panel,
                                      .round_rows = round_rows,
                                      .begin = begin_pairs,
                                      .end = end_pairs};

}  // namespace
}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
