// The rounding error of a 16-bit output, in one byte: an integer from -127 to 127, in 254ths of the distance between the
// output's neighbours. Together they have 16 bits of a bf16 output's fraction, and 19 of f16's. Infinite f16 outputs and
// NaN have none; tiny and huge f16 outputs have less.
// tests/cuda/residual_test.cpp reads this file, too, for bf16.
#pragma once

#include "cuda/kernels/common/integers.h"
#if !FL_OUT_BF16
#include "cuda/kernels/common/ptx.cuh"
#endif

namespace flashlift::cuda {

#if FL_OUT_BF16
// The bits of an f32 number, as an integer, count the numbers of its sign in the order of their distance from 0, and a
// bf16 number is the upper half of one: their difference is the rounding error, in units of x. Infinite numbers and NaN
// stay what they are.
__device__ __forceinline__ u32 scaled_residual(float x, u32 out) { return (__float_as_uint(x) - out) * 254u + 0x8000u; }

// The low byte is the residual of x, whose output has these bits; and the low bytes are those of x and y.
__device__ __forceinline__ u32 residual_of(float x, u32 bits) { return scaled_residual(x, bits << 16) >> 16; }
__device__ __forceinline__ u32 residual_pair(float x, float y, u32 pair) {
  return __byte_perm(scaled_residual(x, pair << 16), scaled_residual(y, pair & 0xffff0000u), 0x0062);
}

// What an output was before it was rounded, by its bits and byte i of four residuals. Without residuals they are 0.
__device__ __forceinline__ float unrounded(u32 bits, u32 four, int i) {
  const int steps = static_cast<int>(four << (24 - 8 * i)) >> 24;
  return __uint_as_float((bits << 16) + static_cast<u32>(steps * 258));  // 2^16 / 254
}
#else
__device__ __forceinline__ float out_of(u32 bits) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(static_cast<unsigned short>(bits)));
  return out;
}
// 2^e of an output from 2^e to 2^(e + 1), given by its bits.
__device__ __forceinline__ float power_of_output(u32 bits) {
  return __uint_as_float((max(bits & 0x7c00u, 0x400u) << 13) + (112u << 23));
}

__device__ __forceinline__ u32 residual_of(float x, u32 bits) {
  const float rest = x - out_of(bits);
  const float inverse = __uint_as_float(0x7f000000u - __float_as_uint(power_of_output(bits)));
  return fabsf(rest) < FL_INFINITY ? static_cast<u32>(__float2int_rn(rest * inverse * (254.0f * 0x1p10f))) : 0;
}
__device__ __forceinline__ u32 residual_pair(float x, float y, u32 pair) {
  return __byte_perm(residual_of(x, pair & 0xffffu), residual_of(y, pair >> 16), 0x0040);
}

__device__ __forceinline__ float unrounded(u32 bits, u32 four, int i) {
  // As the low byte of a float of 2^23 whose unit is 1: fewer instructions than a conversion.
  constexpr float kOffset = 0x1p23f + 128.0f;
  const float steps = __uint_as_float(__byte_perm(four ^ 0x80808080u, 0x4b000000u, 0x7540u + i)) - kOffset;
  return fmaf(steps, power_of_output(bits) * (0x1p-10f / 254.0f), out_of(bits));
}
#endif

}  // namespace flashlift::cuda
