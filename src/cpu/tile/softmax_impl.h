// The softmax over successive blocks of keys. A part of kernels_impl.h.
#pragma once

#include <cstdint>

#include "cpu/tile/rows_impl.h"

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

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

// Stores the exponentials in place of the scores, one or two vectors at a time.
struct Exponentials {
  static void store(float* row, int64_t c, Float p) { Vector::store(row + c, p); }
  static void store(float* row, int64_t c, Float p0, Float p1) {
    Vector::store(row + c, p0);
    Vector::store(row + c + kLanes, p1);
  }
  static void finish(float*, int64_t) {}
  static float stored_sum(float sum) { return sum; }
};

// The sums of a row's exponentials, and of the stored ones.
struct ExponentialSums {
  float sum;
  float stored;
};

// Replaces a row's scores by exponentials, which Output stores. kLarge: see is_large_score().
template <typename Output, bool kLarge>
ExponentialSums exponentials(float* row, int64_t columns, float offset) {
  const Float log2e = Vector::set(kLog2E);
  const Float shift = Vector::set(offset);
  const auto exponential = [&](Float x) {
    return Vector::exp2_nonpositive(kLarge ? Vector::mul(Vector::sub(x, shift), log2e) : Vector::fms(x, log2e, shift));
  };
  Output output;
  Float sum0 = Vector::zero();
  Float sum1 = Vector::zero();
  int64_t c = 0;
  for (; c + 2 * kLanes <= columns; c += 2 * kLanes) {
    const Float p0 = exponential(Vector::load(row + c));
    const Float p1 = exponential(Vector::load(row + c + kLanes));
    output.store(row, c, p0, p1);
    sum0 = Vector::add(sum0, p0);
    sum1 = Vector::add(sum1, p1);
  }
  if (c < columns) {
    const Float p = exponential(Vector::load(row + c));
    output.store(row, c, p);
    sum0 = Vector::add(sum0, p);
  }
  output.finish(row, columns);
  const float sum = Vector::reduce_add(Vector::add(sum0, sum1));
  return {sum, output.stored_sum(sum)};
}

// For a row with a maximum of +inf: inf - inf would make every sum NaN, but lse must distinguish +inf from NaN.
ExponentialSums sums_of_infinite_row(float* row, int64_t columns) {
  float sum = 0;
  for (int64_t c = 0; c < columns; ++c) {
    sum = row[c] != row[c] ? row[c] : sum;
    row[c] = 0;
  }
  return {sum, sum};
}

// log2 of the factor for the sums so far when the maximum grows. It is the difference of the two references, each of
// which may be rounded (see RowState).
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
    ExponentialSums sums;
    float shrink = 1;
    const bool large = !(m > -kLargeScore && m < kLargeScore);
    if (!large) {
      sums = exponentials<Output, false>(row, columns, m * kLog2E);
    } else if (m == -kMinusInfinity) {
      sums = sums_of_infinite_row(row, columns);
      Output::finish(row, columns);  // all-zero bits are zeros of every dtype
    } else {
      // If all keys so far are masked, -inf - -inf must not become NaN: all exponentials are 0 instead.
      sums = exponentials<Output, true>(row, columns, m == kMinusInfinity ? 0.0f : m);
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
    state[r].sum = state[r].sum * shrink + sums.sum;
    state[r].divisor = state[r].divisor * shrink + sums.stored;
  }
}

// Written so that the compiler can vectorise it. With sum = 2^e m and t = (m - 1) / (m + 1), where m is between
// sqrt(1/2) and sqrt(2), log m = 2 atanh t. The series up to t^17 has an error of 1e-14.
void log_sums(const RowState* states, int64_t rows, double* logs) {
  constexpr double kLn2 = 0.69314718055994530942;
  constexpr int32_t kMantissaBits = 23;
  constexpr uint32_t kSqrtHalf = 0x3f3504f3;  // its bits as a float
  for (int64_t r = 0; r < rows; ++r) {
    uint32_t bits;
    __builtin_memcpy(&bits, &states[r].sum, sizeof(bits));
    const int32_t exponent = static_cast<int32_t>(bits - kSqrtHalf) >> kMantissaBits;
    bits -= static_cast<uint32_t>(exponent) << kMantissaBits;
    float mantissa;
    __builtin_memcpy(&mantissa, &bits, sizeof(bits));
    const double m = mantissa;
    const double t = (m - 1) / (m + 1);
    const double u = t * t;
    double series = 1.0 / 17;
    series = series * u + 1.0 / 15;
    series = series * u + 1.0 / 13;
    series = series * u + 1.0 / 11;
    series = series * u + 1.0 / 9;
    series = series * u + 1.0 / 7;
    series = series * u + 1.0 / 5;
    series = series * u + 1.0 / 3;
    series = series * u + 1.0;
    logs[r] = static_cast<double>(exponent) * kLn2 + 2 * t * series;
  }
}

}  // namespace
}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
