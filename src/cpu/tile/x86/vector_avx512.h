// 16 floats in an AVX-512 register. Included only by the translation unit compiled for AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/tile/polynomials.h"
#include "cpu/tile/x86/flush_denormals.h"
#include "flashlift/tensor.h"

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {

struct Vector {
  using Float = __m512;
  static constexpr int kLanes = 16;
  // The 32 registers hold 24 accumulators, 4 columns of B and a broadcast of A.
  static constexpr int kPanelVectors = 4;
  static constexpr int kAccumulators = 24;

  using FlushDenormals = FlushDenormalsOfX86;
  // Prefetches into the second-level cache.
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

  static Float zero() { return _mm512_setzero_ps(); }
  static Float set(float x) { return _mm512_set1_ps(x); }
  static Float load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Float x) { _mm512_storeu_ps(p, x); }
  static __mmask16 first(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static Float load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_first(float* p, Float x, int64_t n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static Float keep_first(Float x, int64_t n, Float otherwise) { return _mm512_mask_mov_ps(otherwise, first(n), x); }

  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float fms(Float a, Float b, Float c) { return _mm512_fmsub_ps(a, b, c); }
  // x, or 0 where x < least.
  static Float zero_if_less(Float x, Float least) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ), x);
  }
  // b where either is NaN.
  static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static float reduce_max(Float a) {
    const __m256 x = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
  }
  // p[0], ... p[3] = the four sums.
  static void store_sums(float* p, Float a, Float b, Float c, Float d) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const __m512 x = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
  }
  static float reduce_add(Float a) {
    const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
  }

  // 2^x for x <= 0 or NaN. The fraction is in [0, 1), so that scalef, which scales by 2^floor(x), does not round.
  // VREDUCE of -inf is 0, and so is the result of scalef.
  static Float exp2_nonpositive(Float x) {
    const Float r = _mm512_reduce_ps(x, 1);
    Float p = set(kExp2Polynomial[5]);
    p = fma(p, r, set(kExp2Polynomial[4]));
    p = fma(p, r, set(kExp2Polynomial[3]));
    p = fma(p, r, set(kExp2Polynomial[2]));
    p = fma(p, r, set(kExp2Polynomial[1]));
    p = fma(p, r, set(kExp2Polynomial[0]));
    return _mm512_scalef_ps(p, x);
  }
  static Float load_half(const void* p, DType dtype) {
    const __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return widen(bits, dtype);
  }
  static Float load_half_first(const void* p, int64_t n, DType dtype) {
    return widen(_mm256_maskz_loadu_epi16(first(n), p), dtype);
  }
  static Float widen(__m256i bits, DType dtype) {
    if (dtype == DType::kF16) {
      return _mm512_cvtph_ps(bits);
    }
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static void store_half_first(void* p, Float x, int64_t n, DType dtype) {
    _mm256_mask_storeu_epi16(p, first(n), dtype == DType::kF16 ? narrow_f16(x) : narrow_bf16(x));
  }
  static __m256i narrow_f16(Float x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static __m256i narrow_bf16(Float x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
  }

  // 16 unsigned integers.
  using Integer = __m512i;
  static Integer set_integer(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static Integer steps(uint32_t first) {
    return _mm512_add_epi32(set_integer(first),
                            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  }
  static Integer xor3(Integer a, Integer b, Integer c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
  // The 64-bit products' halves.
  static void multiply_wide(Integer a, Integer b, Integer& high, Integer& low) {
    const Integer even = _mm512_mul_epu32(a, b);
    const Integer odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b);
    const Integer low_halves = _mm512_setr_epi32(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    const Integer high_halves = _mm512_setr_epi32(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    low = _mm512_permutex2var_epi32(even, low_halves, odd);
    high = _mm512_permutex2var_epi32(even, high_halves, odd);
  }
  // x where a >= b, 0 elsewhere.
  static Float keep_at_least(Float x, Integer a, Integer b) {
    return _mm512_maskz_mov_ps(_mm512_cmpge_epu32_mask(a, b), x);
  }

  // rows[i] lane j becomes rows[j] lane i.
  static void transpose(Float (&x)[16]) {
    Float y[16];
    for (int i = 0; i < 16; i += 2) {
      y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
      y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      x[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(y[i]), _mm512_castps_pd(y[i + 2])));
      x[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(y[i]), _mm512_castps_pd(y[i + 2])));
      x[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(y[i + 1]), _mm512_castps_pd(y[i + 3])));
      x[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(y[i + 1]), _mm512_castps_pd(y[i + 3])));
    }
    for (int i = 0; i < 4; ++i) {
      y[i] = _mm512_shuffle_f32x4(x[i], x[i + 4], 0x88);
      y[i + 4] = _mm512_shuffle_f32x4(x[i], x[i + 4], 0xdd);
      y[i + 8] = _mm512_shuffle_f32x4(x[i + 8], x[i + 12], 0x88);
      y[i + 12] = _mm512_shuffle_f32x4(x[i + 8], x[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm512_shuffle_f32x4(y[i], y[i + 8], 0x88);
      x[i + 8] = _mm512_shuffle_f32x4(y[i], y[i + 8], 0xdd);
      x[i + 4] = _mm512_shuffle_f32x4(y[i + 4], y[i + 12], 0x88);
      x[i + 12] = _mm512_shuffle_f32x4(y[i + 4], y[i + 12], 0xdd);
    }
  }
};

}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
