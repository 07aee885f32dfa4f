// The rounding error of a 16-bit output, in one byte: an integer from -127 to 127, in 254ths of the distance between the
// output's neighbours. Together they have 16 bits of a bf16 output's fraction, and 19 of f16's. Tiny and huge outputs
// (below 2^-119, from 2^127 on) have less, and infinite ones and NaN have 0.
#pragma once

#include "cuda/kernels/common/ptx.cuh"

namespace flashlift::cuda {

// Relative to the output's power of two.
constexpr float kResidualStep = (FL_OUT_BF16 ? 0x1p-7f : 0x1p-10f) / 254.0f;
constexpr float kResidualSteps = 254.0f * (FL_OUT_BF16 ? 0x1p7f : 0x1p10f);  // its inverse

// 2^e of an output from 2^e to 2^(e + 1), given by its bits.
__device__ __forceinline__ float power_of_output(u32 bits) {
#if FL_OUT_BF16
  return __uint_as_float(max(bits & 0x7f80u, 0x400u) << 16);
#else
  return __uint_as_float((max(bits & 0x7c00u, 0x400u) << 13) + (112u << 23));
#endif
}

// The low byte is the residual of x, whose output has these bits; rest: x less the output.
__device__ __forceinline__ u32 residual_of(float rest, u32 bits) {
  const float inverse = __uint_as_float(0x7f000000u - __float_as_uint(power_of_output(bits)));
  return fabsf(rest) < FL_INFINITY ? static_cast<u32>(__float2int_rn(rest * inverse * kResidualSteps)) : 0;
}

// Byte i of four residuals, as a number; `bits`: the output's.
__device__ __forceinline__ float residual_at(u32 four, int i, u32 bits) {
  // As the low byte of a float of 2^23 whose unit is 1: fewer instructions than a conversion.
  constexpr float kOffset = 0x1p23f + 128.0f;
  const float steps = __uint_as_float(__byte_perm(four ^ 0x80808080u, 0x4b000000u, 0x7540u + i)) - kOffset;
  return steps * (power_of_output(bits) * kResidualStep);
}

}  // namespace flashlift::cuda
