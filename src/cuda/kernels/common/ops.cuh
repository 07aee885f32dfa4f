// The score-program operations on a GPU, by the semantics of flashlift/ops.def: op_<name> for each row of that table
// that does not name a CUDA function. Generated code calls only these and CUDA's functions. i1 is bool, i32 int, i64
// long long, f32 float.
#pragma once

#include "cuda/kernels/common/ptx.cuh"

namespace flashlift::cuda {

using i32 = int;
using i64 = long long;

template <typename T>
struct Unsigned;
template <>
struct Unsigned<i32> {
  using type = u32;
};
template <>
struct Unsigned<i64> {
  using type = u64;
};
template <typename T>
using UnsignedOf = typename Unsigned<T>::type;

template <typename T>
constexpr int kBits = 8 * sizeof(T);
template <typename T>
constexpr T kLowest = static_cast<T>(UnsignedOf<T>{1} << (kBits<T> - 1));

#define FL_OP __device__ __forceinline__

// Arithmetic. Integers wrap around.
template <typename T>
FL_OP T op_add(T x, T y) {
  return static_cast<T>(static_cast<UnsignedOf<T>>(x) + static_cast<UnsignedOf<T>>(y));
}
template <typename T>
FL_OP T op_sub(T x, T y) {
  return static_cast<T>(static_cast<UnsignedOf<T>>(x) - static_cast<UnsignedOf<T>>(y));
}
template <typename T>
FL_OP T op_mul(T x, T y) {
  return static_cast<T>(static_cast<UnsignedOf<T>>(x) * static_cast<UnsignedOf<T>>(y));
}
template <typename T>
FL_OP T op_div(T x, T y) {
  return y == 0 ? T(-1) : (y == T(-1) ? op_sub(T(0), x) : x / y);
}
template <typename T>
FL_OP T op_rem(T x, T y) {
  return y == 0 ? x : (y == T(-1) ? T(0) : x % y);
}
template <typename T>
FL_OP T op_floor_div(T x, T y) {
  const T rest = op_rem(x, y);
  return op_div(x, y) - (y != 0 && rest != 0 && ((x < 0) != (y < 0)) ? T(1) : T(0));
}
template <typename T>
FL_OP T op_mod(T x, T y) {
  const T rest = op_rem(x, y);
  return y != 0 && rest != 0 && ((rest < 0) != (y < 0)) ? rest + y : rest;
}
template <typename T>
FL_OP T op_min(T x, T y) {
  return x < y ? x : y;
}
template <typename T>
FL_OP T op_max(T x, T y) {
  return x < y ? y : x;
}
template <typename T>
FL_OP T op_neg(T x) {
  return op_sub(T(0), x);
}
template <typename T>
FL_OP T op_abs(T x) {
  return x < 0 ? op_neg(x) : x;
}
template <typename T>
FL_OP T op_sign(T x) {
  return x > 0 ? T(1) : (x < 0 ? T(-1) : T(0));
}

FL_OP float op_add(float x, float y) { return x + y; }
FL_OP float op_sub(float x, float y) { return x - y; }
FL_OP float op_mul(float x, float y) { return x * y; }
FL_OP float op_rem(float x, float y) { return fmodf(x, y); }
FL_OP float op_min(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
FL_OP float op_max(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
FL_OP float op_neg(float x) { return -x; }
FL_OP float op_abs(float x) { return fabsf(x); }
FL_OP float op_sign(float x) { return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : x); }

// Functions of the special-function unit: their error (2^-22, tanh 2^-11) is below the error of 16-bit inputs, and they
// cost far less than the accurate ones. f32 problems use the accurate ones.
#if FL_INPUT_F32
FL_OP float op_div(float x, float y) { return x / y; }
FL_OP float op_exp(float x) { return expf(x); }
FL_OP float op_exp2(float x) { return exp2f(x); }
FL_OP float op_log(float x) { return logf(x); }
FL_OP float op_log2(float x) { return log2f(x); }
FL_OP float op_sqrt(float x) { return sqrtf(x); }
FL_OP float op_rsqrt(float x) { return 1.0f / sqrtf(x); }
FL_OP float op_tanh(float x) { return tanhf(x); }
FL_OP float op_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
#else
FL_OP float op_div(float x, float y) {
  float z;
  asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
FL_OP float op_exp2(float x) { return exp2_approx(x); }
FL_OP float op_exp(float x) { return exp2_approx(x * kLog2e); }
FL_OP float op_log2(float x) { return log2_approx(x); }
FL_OP float op_log(float x) { return log2_approx(x) * kLn2; }
FL_OP float op_sqrt(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FL_OP float op_rsqrt(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FL_OP float op_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Not by tanh, whose error near -1 may be larger than all of a small result, of which a program may take the logarithm.
FL_OP float op_sigmoid(float x) { return op_div(1.0f, 1.0f + op_exp(-x)); }
#endif

// Comparison and choice.
template <typename T>
FL_OP bool op_eq(T x, T y) {
  return x == y;
}
template <typename T>
FL_OP bool op_ne(T x, T y) {
  return x != y;
}
template <typename T>
FL_OP bool op_lt(T x, T y) {
  return x < y;
}
template <typename T>
FL_OP bool op_le(T x, T y) {
  return x <= y;
}
template <typename T>
FL_OP bool op_gt(T x, T y) {
  return x > y;
}
template <typename T>
FL_OP bool op_ge(T x, T y) {
  return x >= y;
}
FL_OP bool op_is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
template <typename T>
FL_OP T op_select(bool condition, T x, T y) {
  return condition ? x : y;
}

// Bits. No short circuits: both sides are computed in any case, and branches cost more.
FL_OP bool op_and(bool x, bool y) { return x & y; }
FL_OP bool op_or(bool x, bool y) { return x | y; }
FL_OP bool op_xor(bool x, bool y) { return x != y; }
FL_OP bool op_not(bool x) { return !x; }
template <typename T>
FL_OP T op_and(T x, T y) {
  return x & y;
}
template <typename T>
FL_OP T op_or(T x, T y) {
  return x | y;
}
template <typename T>
FL_OP T op_xor(T x, T y) {
  return x ^ y;
}
template <typename T>
FL_OP T op_not(T x) {
  return ~x;
}
template <typename T>
FL_OP bool outside_width(T y) {
  return y < 0 || y >= kBits<T>;
}
template <typename T>
FL_OP T op_shl(T x, T y) {
  return outside_width(y) ? T(0) : static_cast<T>(static_cast<UnsignedOf<T>>(x) << static_cast<int>(y));
}
template <typename T>
FL_OP T op_shr(T x, T y) {
  return outside_width(y) ? (x < 0 ? T(-1) : T(0)) : x >> static_cast<int>(y);
}
template <typename T>
FL_OP T op_ushr(T x, T y) {
  return outside_width(y) ? T(0) : static_cast<T>(static_cast<UnsignedOf<T>>(x) >> static_cast<int>(y));
}

// Conversions. The instructions saturate. NaN becomes 0: for i32 by itself, for i64 only explicitly.
template <typename T>
FL_OP bool op_to_i1(T x) {
  return x != T(0);
}
template <typename T>
FL_OP i32 op_to_i32(T x) {
  return static_cast<i32>(x);
}
FL_OP i32 op_to_i32(float x) { return __float2int_rz(x); }
template <typename T>
FL_OP i64 op_to_i64(T x) {
  return static_cast<i64>(x);
}
FL_OP i64 op_to_i64(float x) { return x != x ? 0 : __float2ll_rz(x); }
template <typename T>
FL_OP float op_to_f32(T x) {
  return static_cast<float>(x);
}
FL_OP i32 op_bitcast_i32(float x) { return __float_as_int(x); }
FL_OP float op_bitcast_f32(i32 x) { return __int_as_float(x); }
FL_OP float op_round_bf16(float x) {
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(0.0f), "f"(x));
  return __uint_as_float(packed << 16);
}
FL_OP float op_round_f16(float x) {
  unsigned short half;
  float y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(half));
  return y;
}

}  // namespace flashlift::cuda
