// Probabilities and the scores' gradients of the backward pass. A part of kernels_impl.h.
#pragma once

#include <cstdint>

#include "cpu/tile/rows_impl.h"

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

// Computes the same exponentials as score_gradients(), so that the only key of a row has a probability of exactly 1.
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
      // Subtracts before multiplying by log2(e), because a score and the row's lse are close to each other.
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

}  // namespace
}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
