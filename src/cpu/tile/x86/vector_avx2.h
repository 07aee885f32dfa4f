// 8 floats in an AVX2 register. Included only by the translation unit compiled for AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "cpu/tile/polynomials.h"
#include "cpu/tile/x86/flush_denormals.h"
#include "flashlift/tensor.h"

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {

struct Vector {
  using Float = __m256;
  static constexpr int kLanes = 8;
  // The 16 registers hold 12 accumulators, 2 columns of B and a broadcast of A.
  static constexpr int kPanelVectors = 2;
  static constexpr int kAccumulators = 12;

  using FlushDenormals = FlushDenormalsOfX86;
  // Prefetches into the second-level cache.
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

  static Float zero() { return _mm256_setzero_ps(); }
  static Float set(float x) { return _mm256_set1_ps(x); }
  static Float load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
  static __m256i first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Float load_first(const float* p, int64_t n) { return _mm256_maskload_ps(p, first(n)); }
  static void store_first(float* p, Float x, int64_t n) { _mm256_maskstore_ps(p, first(n), x); }
  static Float keep_first(Float x, int64_t n, Float otherwise) {
    return _mm256_blendv_ps(otherwise, x, _mm256_castsi256_ps(first(n)));
  }

  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static Float fms(Float a, Float b, Float c) { return _mm256_fmsub_ps(a, b, c); }
  // x, or 0 where x < least.
  static Float zero_if_less(Float x, Float least) { return _mm256_and_ps(_mm256_cmp_ps(x, least, _CMP_NLT_UQ), x); }
  // b where either is NaN.
  static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static float reduce_max(Float a) {
    const __m128 y = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
  }
  // p[0], ... p[3] = the four sums.
  static void store_sums(float* p, Float a, Float b, Float c, Float d) {
    const __m256 x = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
  }
  static float reduce_add(Float a) {
    const __m128 y = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
  }

  // 2^x for x <= 0 or NaN; results below the normal range are 0.
  static Float exp2_nonpositive(Float x) {
    const Float lowest = set(-126.0f);
    const Float clamped = _mm256_max_ps(lowest, x);  // NaN stays: max gives its second operand
    const Float whole = _mm256_floor_ps(clamped);
    const Float r = _mm256_sub_ps(clamped, whole);
    Float p = set(kExp2Polynomial[5]);
    p = fma(p, r, set(kExp2Polynomial[4]));
    p = fma(p, r, set(kExp2Polynomial[3]));
    p = fma(p, r, set(kExp2Polynomial[2]));
    p = fma(p, r, set(kExp2Polynomial[1]));
    p = fma(p, r, set(kExp2Polynomial[0]));
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23);
    // NaN stays NaN: cvtps gives 0x80000000 for it, which the shift makes 0.
    const Float scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, lowest, _CMP_LT_OQ), scaled);
  }
  static Float load_half(const void* p, DType dtype) {
    return widen(_mm_loadu_si128(static_cast<const __m128i*>(p)), dtype);
  }
  static Float load_half_first(const void* p, int64_t n, DType dtype) {
    __m128i bits = _mm_setzero_si128();
    std::memcpy(&bits, p, static_cast<size_t>(n) * 2);
    return widen(bits, dtype);
  }
  static Float widen(__m128i bits, DType dtype) {
    if (dtype == DType::kF16) {
      return _mm256_cvtph_ps(bits);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static void store_half_first(void* p, Float x, int64_t n, DType dtype) {
    const __m128i bits = dtype == DType::kF16 ? narrow_f16(x) : narrow_bf16(x);
    std::memcpy(p, &bits, static_cast<size_t>(n) * 2);
  }
  static __m128i narrow_f16(Float x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static __m128i narrow_bf16(Float x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0xd8);
    return _mm256_castsi256_si128(packed);
  }

  // 8 unsigned integers.
  using Integer = __m256i;
  static Integer set_integer(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static Integer steps(uint32_t first) {
    return _mm256_add_epi32(set_integer(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Integer xor3(Integer a, Integer b, Integer c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
  // The 64-bit products' halves.
  static void multiply_wide(Integer a, Integer b, Integer& high, Integer& low) {
    const Integer even = _mm256_mul_epu32(a, b);
    const Integer odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
    low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  }
  // x where a >= b, 0 elsewhere.
  static Float keep_at_least(Float x, Integer a, Integer b) {
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(a, b), a)));
  }

  // rows[i] lane j becomes rows[j] lane i.
  static void transpose(Float (&x)[8]) {
    Float y[8];
    for (int i = 0; i < 8; i += 2) {
      y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
      y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
      x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
      x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
      x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      y[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
      y[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
    }
    for (int i = 0; i < 8; ++i) {
      x[i] = y[i];
    }
  }
};

}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
