// Conversions between f32 and the 16-bit float formats, round to nearest even, bit by bit (no ISA needed).
#pragma once

#include <bit>
#include <cstdint>

namespace flashlift {

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);  // quiet NaN
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);

}  // namespace flashlift
