// The two products of the portable kernels for one warp, from shared memory into registers (layout: softmax.cuh): 16 rows
// of Q from `q` on, and as many keys from `k` and `v` on as the scores are for. kDim: columns that are multiplied, or
// written; kRow: elements from row to row.
#pragma once

#include "cuda/kernels/common/softmax.cuh"
#include "cuda/kernels/sm80/tiles.cuh"

namespace flashlift::cuda {

#if FL_INPUT_F32

// f32 on the FMA units. Three products in TF32 would be faster and lose two bits; rounding to one TF32 loses thirteen.
template <int kDim, int kRow, int kCount>
__device__ __forceinline__ void add_scores(float (&s)[kCount], const float* q, const float* k) {
  const int lane = threadIdx.x % 32;
  const float* rows = q + lane / 4 * kRow;
  const float* keys = k + lane % 4 * 2 * kRow;
#pragma unroll 1
  for (int d = 0; d < kDim; d += 4) {
    float4 x[2];
    x[0] = *reinterpret_cast<const float4*>(rows + d);
    x[1] = *reinterpret_cast<const float4*>(rows + 8 * kRow + d);
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float4 y = *reinterpret_cast<const float4*>(keys + (8 * j + c) * kRow + d);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float& sum = s[4 * j + 2 * r + c];
          sum = fmaf(x[r].x, y.x, sum);
          sum = fmaf(x[r].y, y.y, sum);
          sum = fmaf(x[r].z, y.z, sum);
          sum = fmaf(x[r].w, y.w, sum);
        }
      }
    }
  }
}

// `shared_p` belongs to the warp.
template <int kDim, int kRow, int kCount>
__device__ __forceinline__ void multiply_output(float (&output)[kDim / 2], const float (&p)[kCount], const float* v,
                                                float* shared_p) {
  const int lane = threadIdx.x % 32;
  float* rows = shared_p + lane / 4 * kPRow;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<float2*>(rows + 8 * r * kPRow + 8 * j + lane % 4 * 2) =
          make_float2(p[4 * j + 2 * r], p[4 * j + 2 * r + 1]);
    }
  }
  __syncwarp();
#pragma unroll 2
  for (int kv = 0; kv < 2 * kCount; ++kv) {
    const float x[2] = {rows[kv], rows[8 * kPRow + kv]};
    const float* values = v + kv * kRow + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      const float2 y = *reinterpret_cast<const float2*>(values + 8 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        output[4 * j + 2 * r] = fmaf(x[r], y.x, output[4 * j + 2 * r]);
        output[4 * j + 2 * r + 1] = fmaf(x[r], y.y, output[4 * j + 2 * r + 1]);
      }
    }
  }
  __syncwarp();  // before the next tile's probabilities overwrite these
}

#else

template <int kDim, int kRow, int kCount>
__device__ __forceinline__ void add_scores(float (&s)[kCount], const InputElement* q, const InputElement* k) {
  const int lane = threadIdx.x % 32;
  // A: rows 0-7, rows 8-15, then the same eight columns on. B: keys 0-7, their next columns, keys 8-15, likewise.
  const u32 q_address = shared_address(q + lane % 16 * kRow + lane / 16 * 8);
  const u32 k_address = shared_address(k + (lane / 16 * 8 + lane % 8) * kRow + lane / 8 % 2 * 8);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    u32 a[4];
    load_matrices(a, q_address + step * 32);
#pragma unroll
    for (int pair = 0; pair < kCount / 8; ++pair) {
      u32 b[4];
      load_matrices(b, k_address + pair * 16 * kRow * 2 + step * 32);
      multiply_add(s + 8 * pair, a, b[0], b[1]);
      multiply_add(s + 8 * pair + 4, a, b[2], b[3]);
    }
  }
}

template <int kDim, int kRow, int kCount>
__device__ __forceinline__ void multiply_output(float (&output)[kDim / 2], const float (&p)[kCount],
                                                const InputElement* v, float*) {
  const int lane = threadIdx.x % 32;
  const u32 v_address = shared_address(v + lane % 16 * kRow + lane / 16 * 8);
  u32 packed[kCount / 2];
  pack_probabilities(p, packed);
#pragma unroll
  for (int step = 0; step < kCount / 8; ++step) {
    const u32 a[4] = {packed[4 * step], packed[4 * step + 1], packed[4 * step + 2], packed[4 * step + 3]};
#pragma unroll
    for (int pair = 0; pair < kDim / 16; ++pair) {
      u32 b[4];
      load_matrices_transposed(b, v_address + step * 16 * kRow * 2 + pair * 32);
      multiply_add(output + 8 * pair, a, b[0], b[1]);
      multiply_add(output + 8 * pair + 4, a, b[2], b[3]);
    }
  }
}

#endif

template <int kDim, int kRow, int kCount>
__device__ __forceinline__ void multiply_scores(float (&s)[kCount], const InputElement* q, const InputElement* k) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    s[i] = 0.0f;
  }
  add_scores<kDim, kRow>(s, q, k);
}

}  // namespace flashlift::cuda
