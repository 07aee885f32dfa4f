// Dropout's random words. A part of kernels_impl.h.
#pragma once

#include <cstdint>

#include "cpu/tile/philox.h"
#include "cpu/tile/rows_impl.h"

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

// Philox of kLanes counters that differ in their first word; each of the four result words is a vector.
void philox(Vector::Integer (&words)[4], uint64_t seed) {
  const Vector::Integer first_multiplier = Vector::set_integer(kPhiloxMultipliers[0]);
  const Vector::Integer second_multiplier = Vector::set_integer(kPhiloxMultipliers[1]);
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 7
  for (int round = 0; round < kPhiloxRounds; ++round) {
    Vector::Integer high0;
    Vector::Integer low0;
    Vector::Integer high2;
    Vector::Integer low2;
    Vector::multiply_wide(words[0], first_multiplier, high0, low0);
    Vector::multiply_wide(words[2], second_multiplier, high2, low2);
    words[0] = Vector::xor3(high2, words[1], Vector::set_integer(key0));
    words[1] = low2;
    words[2] = Vector::xor3(high0, words[3], Vector::set_integer(key1));
    words[3] = low0;
    key0 += kPhiloxKeySteps[0];
    key1 += kPhiloxKeySteps[1];
  }
}

void keep_masked(float* s, int64_t columns, const uint8_t* keep, int64_t stride) {
  for (int64_t c = 0; c < columns; ++c) {
    s[c] = keep[c * stride] != 0 ? s[c] : 0.0f;
  }
}

// A counter is for keys 16 apart, so that a vector of counters gives four vectors of neighbouring keys.
void drop_out(float* s, int64_t columns, const Dropout& dropout, const DropoutRow& row, int64_t kv_begin) {
  if (dropout.keep != nullptr) {
    const auto& [b, h, q, key] = dropout.keep_strides;
    keep_masked(s, columns, dropout.keep + row.b * b + row.h * h + row.q * q + kv_begin * key, key);
    return;
  }
  const Vector::Integer threshold = Vector::set_integer(dropout.threshold);
  for (int64_t block = 0; block < columns; block += 64) {
    for (int64_t lane = 0; lane < 16 && block + lane < columns; lane += kLanes) {
      Vector::Integer words[4] = {Vector::steps(static_cast<uint32_t>((kv_begin + block) / 4 + lane)),
                                  Vector::set_integer(static_cast<uint32_t>(row.q)),
                                  Vector::set_integer(static_cast<uint32_t>(dropout.origin_h + row.h)),
                                  Vector::set_integer(static_cast<uint32_t>(dropout.origin_b + row.b))};
      philox(words, dropout.seed);
      for (int64_t i = 0; i < 4 && block + 16 * i + lane < columns; ++i) {
        float* at = s + block + 16 * i + lane;
        Vector::store(at, Vector::keep_at_least(Vector::load(at), words[i], threshold));
      }
    }
  }
}

}  // namespace
}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
