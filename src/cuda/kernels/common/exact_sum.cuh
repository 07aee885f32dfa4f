// Sums of f32 numbers in memory to which all blocks add at once, and which have the same bits in every run: additions
// of integers commute, those of floats do not.
#pragma once

#include "cuda/kernels/common/exact_sum.h"
#include "cuda/kernels/common/ptx.cuh"

namespace flashlift::cuda {

constexpr long long kExactDigitMask = (1ll << kExactDigitBits) - 1;

// Bits of the last word: which of these numbers were added.
constexpr unsigned long long kExactInfinity = 1;
constexpr unsigned long long kExactMinusInfinity = 2;
constexpr unsigned long long kExactNan = 4;

__device__ __forceinline__ void add_exactly(unsigned long long* words, float value) {
  const u32 bits = __float_as_uint(value);
  const u32 exponent = bits >> 23 & 0xff;
  const u32 fraction = bits & 0x7fffff;
  const bool negative = bits >> 31 != 0;
  if (exponent == 0xff) {
    atomicOr(words + kExactDigits, fraction != 0 ? kExactNan : negative ? kExactMinusInfinity : kExactInfinity);
    return;
  }
  // The value is `significand` times 2^(shift - 149).
  const u32 shift = exponent == 0 ? 0 : exponent - 1;
  const u32 significand = exponent == 0 ? fraction : fraction | 0x800000;
  const u32 digit = shift / kExactDigitBits;
  const long long shifted = static_cast<long long>(significand) << shift % kExactDigitBits;
  const long long low = shifted & kExactDigitMask;
  const long long high = shifted >> kExactDigitBits;
  if (low != 0) {
    atomicAdd(words + digit, static_cast<unsigned long long>(negative ? -low : low));
  }
  if (high != 0) {
    atomicAdd(words + digit + 1, static_cast<unsigned long long>(negative ? -high : high));
  }
}

// Adds value * 2^(shift - 149), for values from -2^36 to 2^36 and shifts below kExactHighestInteger.
__device__ __forceinline__ void add_exactly(unsigned long long* words, long long value, u32 shift) {
  words += shift / kExactDigitBits;
  long long rest = value << shift % kExactDigitBits;
#pragma unroll 1
  for (; rest != 0; rest >>= kExactDigitBits) {
    const bool negative = rest < 0;
    const long long digit = (negative ? -rest : rest) & kExactDigitMask;
    atomicAdd(words++, static_cast<unsigned long long>(negative ? -digit : digit));
    rest -= negative ? -digit : digit;
  }
}

// The sum, rounded once.
__device__ __forceinline__ float rounded_sum(const unsigned long long* words) {
  const unsigned long long special = words[kExactDigits];
  if (special != 0) {
    return special == kExactInfinity ? FL_INFINITY : special == kExactMinusInfinity ? -FL_INFINITY : FL_NAN;
  }
  long long digits[kExactDigits];
  // Carries upwards, so that all digits but the highest are between 0 and the mask; its sign is then that of the sum.
  const auto carry = [&] {
#pragma unroll
    for (int i = 0; i + 1 < kExactDigits; ++i) {
      digits[i + 1] += digits[i] >> kExactDigitBits;
      digits[i] &= kExactDigitMask;
    }
  };
#pragma unroll
  for (int i = 0; i < kExactDigits; ++i) {
    digits[i] = static_cast<long long>(words[i]);
  }
  carry();
  const bool negative = digits[kExactDigits - 1] < 0;
  if (negative) {
#pragma unroll
    for (int i = 0; i < kExactDigits; ++i) {
      digits[i] = -digits[i];
    }
    carry();
  }
  if (digits[kExactDigits - 1] > kExactDigitMask) {
    return negative ? -FL_INFINITY : FL_INFINITY;
  }
  // The highest digit that is not 0, the two below it, and a bit for all others: more than 24 bits and a sticky one, so
  // that one conversion rounds as the whole sum would be.
  unsigned long long top = 0;
  int lowest = 0;  // the place of the lowest bit of `top`
  bool rest = false;
#pragma unroll
  for (int i = kExactDigits - 1; i >= 0; --i) {
    const auto digit = static_cast<unsigned long long>(digits[i]);
    if (top >> kExactDigitBits == 0) {  // at most one digit is in it
      top = top << kExactDigitBits | digit;
      lowest = i * kExactDigitBits;
    } else {
      rest |= digit != 0;
    }
  }
  const float magnitude = ldexpf(__ull2float_rn(top << 1 | static_cast<unsigned long long>(rest)), lowest - 1 - 149);
  return negative ? -magnitude : magnitude;
}

}  // namespace flashlift::cuda
