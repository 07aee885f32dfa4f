// Corrects the output if V contains infinities or NaN.
//
// The value of a masked key must not contribute, but its product with a probability of 0 is NaN if the value is
// infinite or NaN. A check of V before each product costs 7 % (docs/lessons). A check of the output costs nothing: an
// accumulator that is not finite never becomes finite again. The check comes once, after the partial tiles, which come
// first. If the output is not finite, which is rare, these tiles are multiplied again without the masked keys.
// FL_REDO_ALL is for problems that also mask in other tiles, by score_mod or dropout: then the check comes after the
// last tile, and all tiles are multiplied again.
#pragma once

#include "cuda/kernels/common/dropout.cuh"
#include "cuda/kernels/common/keys.cuh"
#include "cuda/kernels/common/mods.cuh"
#include "cuda/kernels/common/scheduler.cuh"

namespace flashlift::cuda {

constexpr int kRedoKeys = 8;  // at a time

__device__ __forceinline__ bool warp_has_nonfinite(const float (&accumulator)[FL_V_DIM / 2]) {
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < FL_V_DIM / 2; ++i) {
    sums[i % 4] += accumulator[i];
  }
  // (If finite values have a sum that overflows, the repetition is needless.)
  return __any_sync(0xffffffff, !(fabsf((sums[0] + sums[1]) + (sums[2] + sums[3])) < FL_INFINITY));
}

// Scores of kRedoKeys keys from `kv` on (layout: softmax.cuh), masked.
__device__ __forceinline__ void redo_scores(float (&s)[kRedoKeys / 2], const ForwardParams& params, const Rows& rows,
                                            int kv) {
  const InputElement* q[2];
  const InputElement* k[2];
  const int column = kv + threadIdx.x % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = min(rows.q[r], params.q_len - 1);  // rows outside are dropped, but must not be read
    q[r] = query_row(params, rows.b, rows.h[r], row);
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int key = min(column + c, params.kv_len - 1);
    k[c] = key_row(params.k, params.k_strides, params, rows.b, rows.h[0] / params.group, key);
  }
#pragma unroll
  for (int i = 0; i < kRedoKeys / 2; ++i) {
    s[i] = 0.0f;
  }
#pragma unroll 1
  for (int d = 0; d < FL_HEAD_DIM; ++d) {
#pragma unroll
    for (int i = 0; i < kRedoKeys / 2; ++i) {
      s[i] = fmaf(to_float(q[i / 2][d * params.q_strides.column]), to_float(k[i % 2][d * params.k_strides.column]), s[i]);
    }
  }
  apply_score_mod(s, params, rows, column);
  apply_masks(s, params, rows, column);
}

// Adds the contributions of these keys to the thread's rows, relative to the current maximum: for each j, `sums` has
// columns 8j + 2t and 8j + 2t + 1 of the first row and then of the second. A key that was dropped or masked has
// probability 0 here; one whose probability underflowed counts as masked.
__device__ __forceinline__ void redo_keys(float (&sums)[FL_V_DIM / 2], const float (&maximum)[2],
                                          const ForwardParams& params, const Rows& rows, int kv) {
  float p[kRedoKeys / 2];
  redo_scores(p, params, rows, kv);
  const int column = kv + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < kRedoKeys / 2; ++i) {
    const int r = i / 2;
    const bool keep = p[i] != -FL_INFINITY && keeps_key(rows.b, rows.h[r], rows.q[r], column + i % 2, params);
    p[i] = keep ? exponential(below_maximum(p[i], maximum[r]) * score_factor(params)) : 0.0f;
  }
#pragma unroll 1
  for (int key = 0; key < kRedoKeys && kv + key < params.kv_len; ++key) {
    const int owner = threadIdx.x % 32 / 4 * 4 + key / 2;
    float weight[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      weight[r] = __shfl_sync(0xffffffff, key % 2 != 0 ? p[2 * r + 1] : p[2 * r], owner);
    }
    const InputElement* v = key_row(params.v, params.v_strides, params, rows.b, rows.h[0] / params.group, kv + key);
#pragma unroll 1
    for (int i = 0; i < FL_V_DIM / 4; ++i) {
      const int value_column = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
      const float x = value_column < FL_VALUE_DIM ? to_float(v[value_column * params.v_strides.column]) : 0.0f;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sums[i / 2 * 4 + 2 * r + i % 2] += weight[r] != 0.0f ? weight[r] * x : 0.0f;
      }
    }
  }
}

// Computes a warp's sums again, over the tiles with masked scores or over all tiles. The keys of a tile are the kKeys
// from `first_key` on. Small code matters here, not speed: the sums are in local memory, so that no loop is unrolled.
template <int kKeys>
__device__ __forceinline__ void redo_tiles(float (&sums)[FL_V_DIM / 2], const float (&maximum)[2],
                                           const ForwardParams& params, const QueryTile& tile, const Rows& rows,
                                           int first_key) {
#pragma unroll 1
  for (int i = 0; i < FL_V_DIM / 2; ++i) {
    sums[i] = 0.0f;
  }
#pragma unroll 1
  for (int first = 0; nth_kv_tile(params, tile, first) < tile.end_kv_tile; first += 32) {
    const int kv_tile = nth_kv_tile(params, tile, first + static_cast<int>(threadIdx.x % 32));
    u32 hits = __ballot_sync(0xffffffff, FL_REDO_ALL ? kv_tile < tile.end_kv_tile
                                                     : tile_kind(params, tile, kv_tile) == kTilePartial);
#pragma unroll 1
    for (; hits != 0; hits &= hits - 1) {
      const int kv = nth_kv_tile(params, tile, first + __ffs(hits) - 1) * FL_BLOCK_N + first_key;
#pragma unroll 1
      for (int key = 0; key < kKeys; key += kRedoKeys) {
        redo_keys(sums, maximum, params, rows, kv + key);
      }
    }
  }
}

// From local memory.
__device__ __forceinline__ void copy_sums(float (&accumulator)[FL_V_DIM / 2], const float (&sums)[FL_V_DIM / 2]) {
#pragma unroll
  for (int i = 0; i < FL_V_DIM / 2; ++i) {
    if (i % 8 == 0) {
      asm volatile("" ::: "memory");  // a few loads at a time: all of them need registers that are not free
    }
    accumulator[i] = sums[i];
  }
}

template <int kKeys>
__device__ __forceinline__ void redo_nonfinite(float (&accumulator)[FL_V_DIM / 2], const float (&maximum)[2],
                                               const ForwardParams& params, const QueryTile& tile, const Rows& rows,
                                               int first_key) {
#if FL_REDO_ALL || FL_HAS_MASK_MOD
  if (warp_has_nonfinite(accumulator)) {
    float sums[FL_V_DIM / 2];
    redo_tiles<kKeys>(sums, maximum, params, tile, rows, first_key);
    copy_sums(accumulator, sums);
  }
#endif
}

}  // namespace flashlift::cuda
