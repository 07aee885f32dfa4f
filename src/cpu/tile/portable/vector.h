// 8 floats in an array: plain C++ that a compiler may vectorise for any processor.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "cpu/tile/polynomials.h"
#include "flashlift/tensor.h"
#include "support/half.h"

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {

struct Vector {
  static constexpr int kLanes = 8;
  struct Float {
    float lanes[kLanes];
  };
  static constexpr int kPanelVectors = 2;
  static constexpr int kAccumulators =
      12;  // as AVX2: what comes next is prefetched at that rate (cpu/prefetch_queue.h)

  // Does nothing: each kind of processor has its own way to flush denormal numbers.
  struct FlushDenormals {
    FlushDenormals() {}
    ~FlushDenormals() {}
  };
  static void prefetch(const void* /*p*/) {}

  // The lanes f(0), f(1), ...
  template <typename F>
  static Float make(const F& f) {
    Float result;
    for (int i = 0; i < kLanes; ++i) {
      result.lanes[i] = f(i);
    }
    return result;
  }

  static Float zero() { return set(0); }
  static Float set(float x) {
    return make([&](int) { return x; });
  }
  static Float load(const float* p) {
    return make([&](int i) { return p[i]; });
  }
  static void store(float* p, Float x) { std::memcpy(p, x.lanes, sizeof(x)); }
  static Float load_first(const float* p, int64_t n) {
    return make([&](int i) { return i < n ? p[i] : 0.0f; });
  }
  static void store_first(float* p, Float x, int64_t n) { std::memcpy(p, x.lanes, static_cast<size_t>(n) * 4); }
  static Float keep_first(Float x, int64_t n, Float otherwise) {
    return make([&](int i) { return i < n ? x.lanes[i] : otherwise.lanes[i]; });
  }

  static Float add(Float a, Float b) {
    return make([&](int i) { return a.lanes[i] + b.lanes[i]; });
  }
  static Float sub(Float a, Float b) {
    return make([&](int i) { return a.lanes[i] - b.lanes[i]; });
  }
  static Float mul(Float a, Float b) {
    return make([&](int i) { return a.lanes[i] * b.lanes[i]; });
  }
  // The product is exact in f64. Where the processor has no fused multiply-add, this is faster than a call of fma().
  static float multiply_add(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
    return __builtin_fmaf(a, b, c);
#else
    return static_cast<float>(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
#endif
  }
  static Float fma(Float a, Float b, Float c) {
    return make([&](int i) { return multiply_add(a.lanes[i], b.lanes[i], c.lanes[i]); });
  }
  static Float fms(Float a, Float b, Float c) {
    return make([&](int i) { return multiply_add(a.lanes[i], b.lanes[i], -c.lanes[i]); });
  }
  // x, or 0 where x < least.
  static Float zero_if_less(Float x, Float least) {
    return make([&](int i) { return x.lanes[i] < least.lanes[i] ? 0.0f : x.lanes[i]; });
  }
  // b where either is NaN.
  static float larger(float a, float b) { return a > b ? a : b; }
  static Float max(Float a, Float b) {
    return make([&](int i) { return larger(a.lanes[i], b.lanes[i]); });
  }
  static float reduce_max(Float a) {
    for (int width = kLanes / 2; width >= 1; width /= 2) {
      for (int i = 0; i < width; ++i) {
        a.lanes[i] = larger(a.lanes[i], a.lanes[i + width]);
      }
    }
    return a.lanes[0];
  }
  static float reduce_add(Float a) {
    for (int width = kLanes / 2; width >= 1; width /= 2) {
      for (int i = 0; i < width; ++i) {
        a.lanes[i] += a.lanes[i + width];
      }
    }
    return a.lanes[0];
  }
  // p[0], ... p[3] = the four sums.
  static void store_sums(float* p, Float a, Float b, Float c, Float d) {
    p[0] = reduce_add(a);
    p[1] = reduce_add(b);
    p[2] = reduce_add(c);
    p[3] = reduce_add(d);
  }

  // 2^x for x <= 0 or NaN; results below the normal range are 0.
  static float exp2_of(float x) {
    constexpr float kLowest = -126.0f;
    if (!(x >= kLowest)) {
      return x < kLowest ? 0.0f : x;
    }
    const auto truncated = static_cast<int32_t>(x);
    const int32_t whole = truncated - (static_cast<float>(truncated) > x ? 1 : 0);
    const float r = x - static_cast<float>(whole);
    float p = kExp2Polynomial[5];
    for (int i = 4; i >= 0; --i) {
      p = multiply_add(p, r, kExp2Polynomial[i]);
    }
    return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (static_cast<uint32_t>(whole) << 23));
  }
  static Float exp2_nonpositive(Float x) {
    return make([&](int i) { return exp2_of(x.lanes[i]); });
  }

  static Float load_half(const void* p, DType dtype) { return load_half_first(p, kLanes, dtype); }
  static Float load_half_first(const void* p, int64_t n, DType dtype) {
    uint16_t bits[kLanes] = {};
    std::memcpy(bits, p, static_cast<size_t>(n) * 2);
    return make([&](int i) { return dtype == DType::kF16 ? f16_to_float(bits[i]) : bf16_to_float(bits[i]); });
  }
  static void store_half_first(void* p, Float x, int64_t n, DType dtype) {
    uint16_t bits[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      bits[i] = dtype == DType::kF16 ? float_to_f16(x.lanes[i]) : float_to_bf16(x.lanes[i]);
    }
    std::memcpy(p, bits, static_cast<size_t>(n) * 2);
  }

  // 8 unsigned integers.
  struct Integer {
    uint32_t lanes[kLanes];
  };
  template <typename F>
  static Integer make_integer(const F& f) {
    Integer result;
    for (int i = 0; i < kLanes; ++i) {
      result.lanes[i] = f(i);
    }
    return result;
  }
  static Integer set_integer(uint32_t x) {
    return make_integer([&](int) { return x; });
  }
  static Integer steps(uint32_t first) {
    return make_integer([&](int i) { return first + static_cast<uint32_t>(i); });
  }
  static Integer xor3(Integer a, Integer b, Integer c) {
    return make_integer([&](int i) { return a.lanes[i] ^ b.lanes[i] ^ c.lanes[i]; });
  }
  // The 64-bit products' halves.
  static void multiply_wide(Integer a, Integer b, Integer& high, Integer& low) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t product = uint64_t{a.lanes[i]} * b.lanes[i];
      high.lanes[i] = static_cast<uint32_t>(product >> 32);
      low.lanes[i] = static_cast<uint32_t>(product);
    }
  }
  // x where a >= b, 0 elsewhere.
  static Float keep_at_least(Float x, Integer a, Integer b) {
    return make([&](int i) { return a.lanes[i] >= b.lanes[i] ? x.lanes[i] : 0.0f; });
  }

  // rows[i] lane j becomes rows[j] lane i.
  static void transpose(Float (&x)[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < i; ++j) {
        const float before = x[i].lanes[j];
        x[i].lanes[j] = x[j].lanes[i];
        x[j].lanes[i] = before;
      }
    }
  }
};

}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
