// The epilogue: writes accumulators in registers to the output and lse in memory (layout: softmax.cuh).
//
// It writes directly from registers. The output is a few percent of the traffic, four shuffles give every thread 16
// contiguous bytes, any strides work, and Q's shared memory is free for the next tile during the write.
#pragma once

#include "cuda/kernels/common/dropout.cuh"
#include "cuda/kernels/common/keys.cuh"
#include "cuda/kernels/common/mods.cuh"
#if FL_WANT_RESIDUAL
#include "cuda/kernels/common/residual.cuh"
#endif

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

__device__ __forceinline__ void store_global_if(bool condition, float* address, float x, float y) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p st.global.v2.f32 [%0], {%1, %2};\n}\n" ::"l"(address), "f"(x),
               "f"(y), "r"(static_cast<int>(condition))
               : "memory");
}

struct RowResult {
  float scale;  // the accumulator is multiplied by it
  float lse;
  float maximum;  // the largest score
  bool empty;     // no key and no sink
};

// Sums the row over its four threads, and includes the sinks.
__device__ __forceinline__ RowResult finish_row(const ForwardParams& params, const RowState& state, int r, int h) {
  float sum = quad_sum(state.sum[r]);
  bool nan = sum != sum;
  RowResult result;
  const float keys_maximum = state.maximum[r] * score_unit(params);
  result.maximum = nan ? FL_NAN : keys_maximum;
  float maximum = keys_maximum;
  float weight = 1.0f;  // of the keys, beside the sinks
#if FL_HAS_SINKS
  const float* sinks = params.sinks + h * params.sink_strides[0];
  for (int i = 0; i < params.sinks_per_head; ++i) {
    const float sink = sinks[i * params.sink_strides[1]];
    nan |= sink != sink;
    maximum = fmaxf(maximum, sink);
  }
  if (fabsf(maximum) < FL_INFINITY) {
    weight = exponential((keys_maximum - maximum) * kExponentUnit);
    sum *= weight;
    for (int i = 0; i < params.sinks_per_head; ++i) {
      sum += exponential((sinks[i * params.sink_strides[1]] - maximum) * kExponentUnit);
    }
  }
#endif
  result.empty = maximum == -FL_INFINITY && !nan;
  const float empty_lse = FL_EMPTY_NAN ? FL_NAN : -FL_INFINITY;
  result.lse = result.empty ? empty_lse : (nan ? FL_NAN : maximum + logf(sum));
#if FL_NORMALIZE
  weight = FL_INPUT_F32 ? weight / sum : __fdividef(weight, sum);
#endif
  // For an infinite score, softmax itself gives NaN: inf - inf.
  result.scale = nan || maximum == FL_INFINITY ? FL_NAN : weight * params.dropout_factor;
  if (result.empty) {
    result.scale = FL_EMPTY_NAN ? FL_NAN : 0.0f;
  }
  return result;
}

#if FL_EMPTY_UNIFORM
// Overwrites an empty row by the mean of all values. This is rare, so small code matters more than speed: one loop over
// memory.
__device__ __forceinline__ void fill_empty_row(const ForwardParams& params, int b, int h, int row) {
  OutElement* out = static_cast<OutElement*>(params.out) + b * params.out_strides.batch +
                    h * params.out_strides.head + row * params.out_strides.row;
#pragma unroll 1
  for (int column = threadIdx.x % 4; column < FL_VALUE_DIM; column += 4) {
    float value = 0.0f;
#pragma unroll 1
    for (int kv = 0; kv < params.kv_len; ++kv) {
      const InputElement* v = key_row(params.v, params.v_strides, params, b, h / params.group, kv);
      value += keeps_key(b, h, row, kv, params) ? to_float(v[column * params.v_strides.column]) : 0.0f;
    }
    value *= params.dropout_factor;
#if FL_NORMALIZE
    value = params.kv_len > 0 ? value / static_cast<float>(params.kv_len) : 0.0f;
#endif
    out[column * params.out_strides.column] = to_out(value);
  }
}
#endif

// Of row r of the thread's pair: thread t of a quad has columns 8j + 2t of every j; of four j at a time, which are a
// group, it collects the 8 columns of j = t. pair: what is written of two neighbours.
template <int kCount, typename Pair>
__device__ __forceinline__ void collect_eight(const float (&accumulator)[kCount], int r, int group, const Pair& pair,
                                              u32 (&x)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int j = 4 * group + i;
    x[i] = pair(accumulator[4 * j + 2 * r], accumulator[4 * j + 2 * r + 1]);
  }
  transpose_quad(x);
}

// The sums of row r in local memory, for a loop that is not unrolled.
template <int kCount>
__device__ __forceinline__ void copy_row(const float (&accumulator)[kCount], int r, float (&row)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    row[i] = accumulator[i / 2 * 4 + 2 * r + i % 2];
  }
}

// Writes one row of the thread's pair, in pairs of elements or chunks of 16 bytes. `inside`: whether the tensor has the
// row.
template <int kCount>
__device__ __forceinline__ void store_vectors(const float (&accumulator)[kCount], OutElement* out, int r, bool inside) {
  const int lane = threadIdx.x % 32;
#if FL_OUT_F32
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const int column = 8 * j + 2 * (lane % 4);
    store_global_if(inside && column < FL_VALUE_DIM, out + column, accumulator[4 * j + 2 * r],
                    accumulator[4 * j + 2 * r + 1]);
  }
#else
  // No branches: predicated stores keep the warp together.
#pragma unroll
  for (int group = 0; group < kCount / 16; ++group) {
    u32 x[4];
    collect_eight(accumulator, r, group, [](float low, float high) { return to_out_pair(low, high); }, x);
    const int column = 8 * (4 * group + lane % 4);
    store_global_if(inside && column < FL_VALUE_DIM, out + column, x);
  }
#endif
}

// For outputs whose rows do not consist of aligned chunks. These are rare, but every call waits for the compiler: so
// this is one loop, over sums in local memory.
template <int kCount>
__device__ __forceinline__ void store_elements(const float (&accumulator)[kCount], OutElement* out, long long stride,
                                               int r, bool inside) {
  float row[kCount / 2];
  copy_row(accumulator, r, row);
#pragma unroll 1
  for (int i = 0; i < kCount / 2; ++i) {
    const int column = i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
    if (inside && column < FL_VALUE_DIM) {
      out[column * stride] = to_out(row[i]);
    }
  }
}

// `row` is the row within (b, h).
template <int kCount>
__device__ __forceinline__ void store_row(const float (&accumulator)[kCount], void* tensor, const ForwardParams& params,
                                          int r, int b, int h, int row) {
  OutElement* out = static_cast<OutElement*>(tensor) + b * params.out_strides.batch +
                    h * params.out_strides.head + row * params.out_strides.row;
  const bool inside = row < params.q_len;
#if FL_OUT_VECTOR
  store_vectors(accumulator, out, r, inside);
#else
#if FL_OUT_MAY_BE_VECTOR
  if (params.vector_out != 0) {
    store_vectors(accumulator, out, r, inside);
    return;
  }
#endif
  store_elements(accumulator, out, params.out_strides.column, r, inside);
#endif
}

#if FL_WANT_RESIDUAL
__device__ __forceinline__ void store_global_if(bool condition, void* address, u32 x, u32 y) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p st.global.v2.b32 [%0], {%1, %2};\n}\n" ::"l"(address), "r"(x),
               "r"(y), "r"(static_cast<int>(condition))
               : "memory");
}

// One row's residuals, like store_row(): 8 bytes at a time, or one by one.
template <int kCount>
__device__ __forceinline__ void store_residual(const float (&accumulator)[kCount], const ForwardParams& params, int r,
                                               int b, int h, int row) {
  signed char* const residual = static_cast<signed char*>(params.residual) + b * params.out_strides.batch +
                                h * params.out_strides.head + row * params.out_strides.row;
  const bool inside = row < params.q_len;
  const int thread = static_cast<int>(threadIdx.x) % 4;
  if (FL_OUT_VECTOR || (FL_OUT_MAY_BE_VECTOR && params.vector_out != 0)) {
#pragma unroll
    for (int group = 0; group < kCount / 16; ++group) {
      u32 x[4];
      const auto pair = [](float low, float high) { return residual_pair(low, high, to_out_pair(low, high)); };
      collect_eight(accumulator, r, group, pair, x);
      const int column = 8 * (4 * group + thread);
      store_global_if(inside && column < FL_VALUE_DIM, residual + column, __byte_perm(x[0], x[1], 0x5410),
                      __byte_perm(x[2], x[3], 0x5410));
    }
    return;
  }
  float x[kCount / 2];
  copy_row(accumulator, r, x);
#pragma unroll 1  // small code: see store_elements()
  for (int i = 0; i < kCount / 2; ++i) {
    const int column = i / 2 * 8 + thread * 2 + i % 2;
    if (inside && column < FL_VALUE_DIM) {
      const OutElement y = to_out(x[i]);
      residual[column * params.out_strides.column] = static_cast<signed char>(residual_of(x[i], y));
    }
  }
}
#endif

__device__ __forceinline__ void store_statistic(float* values, const long long (&strides)[3], int b, int h, int row,
                                                float value) {
  values[b * strides[0] + h * strides[1] + row * strides[2]] = value;
}

// What must still be known about the thread's rows once their statistics are complete.
struct FinishedRows {
  float scale[2];
  bool empty[2];
};

// Writes the requested statistics.
__device__ __forceinline__ FinishedRows finish_rows(const ForwardParams& params, const RowState& state,
                                                    const Rows& rows) {
  FinishedRows finished;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowResult result = finish_row(params, state, r, rows.h[r]);
    finished.scale[r] = result.scale;
    finished.empty[r] = result.empty;
    if (threadIdx.x % 4 == 0 && rows.q[r] < params.q_len) {
#if FL_WANT_LSE
      store_statistic(params.lse, params.lse_strides, rows.b, rows.h[r], rows.q[r], result.lse);
#endif
#if FL_WANT_ROW_MAX
      store_statistic(params.row_max, params.row_max_strides, rows.b, rows.h[r], rows.q[r], result.maximum);
#endif
    }
  }
  return finished;
}

template <int kCount>
__device__ __forceinline__ void write_rows(float (&accumulator)[kCount], const FinishedRows& finished,
                                           const ForwardParams& params, const Rows& rows) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = rows.q[r];
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& x = accumulator[4 * j + 2 * r + c];
        x *= finished.scale[r];
      }
    }
    store_row(accumulator, params.out, params, r, rows.b, rows.h[r], row);
#if FL_WANT_RESIDUAL
    store_residual(accumulator, params, r, rows.b, rows.h[r], row);
#endif
#if FL_EMPTY_UNIFORM
    __syncwarp();  // the row's other threads have written their parts
    if (finished.empty[r] && row < params.q_len) {
      fill_empty_row(params, rows.b, rows.h[r], row);
    }
    __syncwarp();
#endif
  }
}

template <int kCount>
__device__ __forceinline__ void write_output(float (&accumulator)[kCount], const RowState& state,
                                             const ForwardParams& params, const Rows& rows) {
  write_rows(accumulator, finish_rows(params, state, rows), params, rows);
}

}  // namespace flashlift::cuda
