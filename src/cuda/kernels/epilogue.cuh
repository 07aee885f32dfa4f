// From accumulators in registers to the output and lse in memory (layout: softmax.cuh).
//
// Written straight from registers: the output is a few percent of the traffic, four shuffles give every thread 16
// contiguous bytes, any strides will do, and Q's shared memory is free for the next tile while this one is written.
#pragma once

#include "forward_params.h"
#include "softmax.cuh"

namespace flashlift::cuda {

#if FL_OUT_F32
using OutElement = float;
#else
using OutElement = unsigned short;
#endif

__device__ __forceinline__ OutElement to_out(float x) {
#if FL_OUT_F32
  return x;
#elif FL_OUT_BF16
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(0.0f), "f"(x));
  return static_cast<unsigned short>(packed);
#else
  u32 packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(0.0f), "f"(x));
  return static_cast<unsigned short>(packed);
#endif
}

__device__ __forceinline__ u32 to_out_pair(float low, float high) {
  u32 packed;
#if FL_OUT_BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#endif
  return packed;
}

__device__ __forceinline__ void store_global_if(bool condition, void* address, const u32 (&x)[4]) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}\n" ::"l"(address),
      "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(static_cast<int>(condition))
      : "memory");
}

struct RowResult {
  float scale;  // what the accumulator is multiplied by
  float lse;
  bool empty;   // no key and no sink
};

// Sums the row over its four threads and takes the sinks in.
__device__ __forceinline__ RowResult finish_row(const ForwardParams& params, const RowState& state, int r, float factor,
                                                int h) {
  float sum = quad_sum(state.sum[r]);
  float maximum = state.maximum[r] * factor;  // in the exponential's unit from here on
  float scale = 1.0f;
#if FL_HAS_SINKS
  const float keys_maximum = maximum;
  for (int i = 0; i < params.sinks_per_head; ++i) {
    const float sink = params.sinks[h * params.sink_strides[0] + i * params.sink_strides[1]] * kExponentUnit;
    const float larger = fmaxf(maximum, sink);
    if (larger > -FL_INFINITY) {
      sum = sum * exponential(maximum - larger) + exponential(sink - larger);
      maximum = larger;
    }
  }
  scale = keys_maximum == -FL_INFINITY ? 0.0f : exponential(keys_maximum - maximum);
#endif
  RowResult result;
  result.empty = sum == 0.0f;
#if FL_NORMALIZE
  result.scale = result.empty ? 0.0f : scale / sum;
#else
  result.scale = result.empty ? 0.0f : scale;
#endif
  const float empty_lse = FL_EMPTY_NAN ? __int_as_float(0x7fc00000) : -FL_INFINITY;
  result.lse = result.empty ? empty_lse : maximum / kExponentUnit + logf(sum);
  return result;
}

#if FL_EMPTY_NAN || FL_EMPTY_UNIFORM
// Overwrites an empty row by the problem's rule. Rare, so small code counts: one loop over memory.
__device__ __forceinline__ void fill_empty_row(const ForwardParams& params, int b, int h, int row) {
  OutElement* out = static_cast<OutElement*>(params.out) + b * params.out_strides.batch +
                    h * params.out_strides.head + row * params.out_strides.row;
#pragma unroll 1
  for (int column = threadIdx.x % 4; column < FL_VALUE_DIM; column += 4) {
#if FL_EMPTY_NAN
    const float value = __int_as_float(0x7fc00000);
#else
    const InputElement* v = static_cast<const InputElement*>(params.v) + b * params.v_strides.batch +
                            (h / params.group) * params.v_strides.head + column * params.v_strides.column;
    float value = 0.0f;
#pragma unroll 1
    for (int kv = 0; kv < params.kv_len; ++kv) {
      value += to_float(v[kv * params.v_strides.row]);
    }
#if FL_NORMALIZE
    value = params.kv_len > 0 ? value / static_cast<float>(params.kv_len) : 0.0f;
#endif
#endif
    out[column * params.out_strides.column] = to_out(value);
  }
}
#endif

// One row of the thread's pair. `row` is the row within (b, h).
template <int kCount>
__device__ __forceinline__ void store_row(const float (&accumulator)[kCount], const ForwardParams& params, int r, int b,
                                          int h, int row) {
  const int lane = threadIdx.x % 32;
  OutElement* out = static_cast<OutElement*>(params.out) + b * params.out_strides.batch +
                    h * params.out_strides.head + row * params.out_strides.row;
  const bool inside = row < params.q_len;
#if FL_OUT_VECTOR
  // Thread t of a quad has columns 8j + 2t of every j; of four j at a time it collects the 8 columns of j = t, by
  // transposing a 4 x 4 matrix across the quad. No branches: predicated stores keep the warp together.
  const bool odd = lane & 1;
  const bool upper = lane & 2;
#pragma unroll
  for (int group = 0; group < kCount / 16; ++group) {
    u32 x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 4 * group + i;
      x[i] = to_out_pair(accumulator[4 * j + 2 * r], accumulator[4 * j + 2 * r + 1]);
    }
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const u32 received = __shfl_xor_sync(0xffffffff, odd ? x[i] : x[i + 1], 1);
      x[i] = odd ? received : x[i];
      x[i + 1] = odd ? x[i + 1] : received;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const u32 received = __shfl_xor_sync(0xffffffff, upper ? x[i] : x[i + 2], 2);
      x[i] = upper ? received : x[i];
      x[i + 2] = upper ? x[i + 2] : received;
    }
    const int column = 8 * (4 * group + lane % 4);
    store_global_if(inside && column < FL_VALUE_DIM, out + column, x);
  }
#else
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = 8 * j + 2 * (lane % 4) + c;
      if (inside && column < FL_VALUE_DIM) {
        out[column * params.out_strides.column] = to_out(accumulator[4 * j + 2 * r + c]);
      }
    }
  }
#endif
}

// Rows `row` and `row + 8` of the thread.
template <int kCount>
__device__ __forceinline__ void write_output(float (&accumulator)[kCount], const RowState& state,
                                             const ForwardParams& params, float factor, int b, int h, int row) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowResult result = finish_row(params, state, r, factor, h);
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      accumulator[4 * j + 2 * r] *= result.scale;
      accumulator[4 * j + 2 * r + 1] *= result.scale;
    }
    store_row(accumulator, params, r, b, h, row + 8 * r);
#if FL_EMPTY_NAN || FL_EMPTY_UNIFORM
    __syncwarp();  // the row's other threads have written their part of it
    if (result.empty && row + 8 * r < params.q_len) {
      fill_empty_row(params, b, h, row + 8 * r);
    }
    __syncwarp();
#endif
#if FL_WANT_LSE
    if (threadIdx.x % 4 == 0 && row + 8 * r < params.q_len) {
      params.lse[b * params.lse_strides[0] + h * params.lse_strides[1] + (row + 8 * r) * params.lse_strides[2]] =
          result.lse;
    }
#endif
  }
}

}  // namespace flashlift::cuda
