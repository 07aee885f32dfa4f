// Thin wrappers over the PTX instructions that the kernels are built from.
#pragma once

#include "cuda/kernels/common/integers.h"

namespace flashlift::cuda {

// Not constexpr: NVRTC cannot evaluate it as a constant expression.
#define FL_INFINITY __int_as_float(0x7f800000)
#define FL_NAN __int_as_float(0x7fc00000)
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#if FL_INPUT_F32
using InputElement = float;
__device__ __forceinline__ float to_float(float x) { return x; }
#else
using InputElement = unsigned short;  // the bits of the problem's 16-bit type
__device__ __forceinline__ float to_float(unsigned short bits) {
#if FL_BF16
  return __uint_as_float(static_cast<u32>(bits) << 16);
#else
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#endif
}
#endif

// Two floats rounded to the problem's 16-bit type; `low` takes the lower half.
__device__ __forceinline__ u32 pack_half(float low, float high) {
  u32 packed;
#if FL_BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#endif
  return packed;
}

// Two elements of a packed pair.
__device__ __forceinline__ void unpack_half(u32 packed, float& low, float& high) {
#if FL_BF16
  low = __uint_as_float(packed << 16);
  high = __uint_as_float(packed & 0xffff0000u);
#else
  asm("{\n.reg .b16 x, y;\nmov.b32 {x, y}, %2;\ncvt.f32.f16 %0, x;\ncvt.f32.f16 %1, y;\n}\n"
      : "=f"(low), "=f"(high)
      : "r"(packed));
#endif
}

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void store_shared(u32 address, int value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ int load_shared(u32 address) {
  int value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

}  // namespace flashlift::cuda
