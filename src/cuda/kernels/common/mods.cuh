// Applies the problem's programs to a tile of scores in registers (layout: softmax.cuh).
#pragma once

#include "cuda/kernels/common/forward_params.h"
#include "cuda/kernels/common/ptx.cuh"
#include "cuda/kernels/common/softmax.cuh"
#include "program.cuh"

namespace flashlift::cuda {

// The factor of the softmax's scores. A score_mod reads scaled scores and may leave a last constant factor to the
// softmax (FL_SCORE_FACTOR); without a score_mod, the softmax applies the scale.
__device__ __forceinline__ float score_unit(const ForwardParams& params) {
#if FL_HAS_SCORE_MOD
  return FL_SCORE_FACTOR;
#else
  return params.scale;
#endif
}

// The same factor, in the exponent.
__device__ __forceinline__ float score_factor(const ForwardParams& params) {
  return score_unit(params) * kExponentUnit;
}

// The last column of a thread that has kCount elements of two rows, relative to its first column.
template <int kCount>
constexpr int kLastKey = 2 * kCount - 7;

// True if every load index advances by a constant per key, in all threads of the warp, so that keys can be unrolled.
// `kv` is the thread's first column, and `column` the program's precomputed values for it.
template <typename Mod, int kCount>
__device__ __forceinline__ bool has_unit_stride_loads(const ForwardParams& params, const Rows& rows,
                                                      const typename Mod::Column& column, int kv) {
  bool even = true;
  if constexpr (Mod::kColumns) {
    even = agree(column, Mod::column(rows.b, kv + kLastKey<kCount>, params));
  }
  if constexpr (Mod::kStraightLoads) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      even = even && Mod::loads_inside(rows.b, rows.h[r], rows.q[r], kv, kLastKey<kCount>, params);
    }
  }
  return !(Mod::kColumns || Mod::kStraightLoads) || __all_sync(0xffffffff, even);
}

// The program's result for a score of row r, if has_unit_stride_loads() is true; `key` counts from kv.
template <typename Mod>
__device__ __forceinline__ auto value_at(float x, const typename Mod::Row (&row)[2], const typename Mod::Column& column,
                                         const ForwardParams& params, const Rows& rows, int r, int kv, int key) {
  if constexpr (Mod::kStraightLoads) {
    const int first = FL_SPLIT ? r : 0;  // the thread's two rows may be of different heads
    return Mod::value(x, row[r], column, rows.b, rows.h[r], rows.q[first], FL_SPLIT ? 0 : 8 * r, kv, key, params);
  } else {
    return Mod::value(x, row[r], column, rows.b, rows.h[r], rows.q[r], kv, key, params);
  }
}

// A loop that is not unrolled: few instructions, scores in local memory.
template <int kCount>
__device__ __forceinline__ void apply_score_mod_slowly(float (&s)[kCount], const ForwardParams& params,
                                                       const Rows& rows, const ScoreRow (&row)[2], int kv) {
  float scores[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    scores[i] = s[i];
  }
#pragma unroll 1
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int key = 8 * j + c;
      const ScoreColumn column = score_column(rows.b, kv + key, params);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& x = scores[4 * j + 2 * r + c];
        x = score_mod(x, row[r], column, rows.b, rows.h[r], rows.q[r], kv, key, params);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    s[i] = scores[i];
  }
}

// `zeros`: the mask that the score_mod adds is 0 here.
template <int kCount>
__device__ __forceinline__ void apply_score_mod(float (&s)[kCount], const ForwardParams& params, const Rows& rows,
                                                int kv, bool zeros = false) {
#if FL_SCORE_ZEROS
  if (zeros) {
    const ScoreRow of_rows[2] = {score_row(rows.b, rows.h[0], rows.q[0], params),
                                 score_row(rows.b, rows.h[1], rows.q[1], params)};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int r = i / 2 % 2;
      s[i] = score_mod_of_zeros(s[i], of_rows[r], {}, rows.b, rows.h[r], rows.q[r], kv, i / 4 * 8 + i % 2, params);
    }
    return;
  }
#endif
#if FL_HAS_SCORE_MOD
  const ScoreRow row[2] = {score_row(rows.b, rows.h[0], rows.q[0], params),
                           score_row(rows.b, rows.h[1], rows.q[1], params)};
  const ScoreColumn column = score_column(rows.b, kv, params);
  if (!has_unit_stride_loads<ScoreMod, kCount>(params, rows, column, kv)) {
    apply_score_mod_slowly(s, params, rows, row, kv);
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[4 * j + e] = value_at<ScoreMod>(s[4 * j + e], row, column, params, rows, e / 2, kv, 8 * j + e % 2);
    }
  }
#endif
}

// Whether the end of the keys is masked separately from mask_mod, and only in the tiles that contain it. This saves
// instructions in all other tiles, but adds code that all rounds must jump over, unless rounds without masks have code
// of their own.
#if !FL_HAS_MASK_MOD || FL_PLAIN_ROUNDS
#define FL_END_APART 1
#else
#define FL_END_APART 0
#endif

// Masks what comes after the last key.
template <int kCount>
__device__ __forceinline__ void mask_end(float (&s)[kCount], const ForwardParams& params, int kv) {
  const int first = kv - threadIdx.x % 4 * 2;
  if (!FL_HAS_MASK_MOD || first + 2 * kCount > params.kv_len) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      s[i] = i / 4 * 8 + i % 2 < params.kv_len - kv ? s[i] : -FL_INFINITY;
    }
  }
}

#if FL_HAS_MASK_MOD
// First a loop over bits that is not unrolled, then an unrolled one.
template <int kCount>
__device__ __forceinline__ void apply_mask_mod_slowly(float (&s)[kCount], const ForwardParams& params,
                                                      const Rows& rows, const MaskRow (&row)[2], int kv) {
#pragma unroll
  for (int first = 0; first < kCount; first += 32) {
    u32 keep = 0;
#pragma unroll 1
    for (int i = first; i < first + 32 && i < kCount; i += 4) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int key = 2 * i + c;
        const MaskColumn column = mask_column(rows.b, kv + key, params);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const bool kept =
              (FL_END_APART || kv + key < params.kv_len) && mask_mod(row[r], column, rows.b, rows.h[r], rows.q[r], kv, key, params);
          keep |= static_cast<u32>(kept) << (i - first + 2 * r + c);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 32 && first + i < kCount; ++i) {
      s[first + i] = keep >> i & 1 ? s[first + i] : -FL_INFINITY;
    }
  }
}

template <int kCount>
__device__ __forceinline__ void apply_mask_mod(float (&s)[kCount], const ForwardParams& params, const Rows& rows,
                                               int kv) {
  const MaskRow row[2] = {mask_row(rows.b, rows.h[0], rows.q[0], params),
                          mask_row(rows.b, rows.h[1], rows.q[1], params)};
  const MaskColumn column = mask_column(rows.b, kv, params);
  if (!has_unit_stride_loads<MaskMod, kCount>(params, rows, column, kv)) {
    apply_mask_mod_slowly(s, params, rows, row, kv);
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = 8 * j + e % 2;
      bool keep = value_at<MaskMod>(0.0f, row, column, params, rows, e / 2, kv, key);
      // Not &&: the compiler would not compute what follows a condition once for all keys.
      keep &= FL_END_APART || key < params.kv_len - kv;
      s[4 * j + e] = keep ? s[4 * j + e] : -FL_INFINITY;
    }
  }
}
#endif

// Only for tiles that contain masked scores or the end of the keys.
template <int kCount>
__device__ __forceinline__ void apply_masks(float (&s)[kCount], const ForwardParams& params, const Rows& rows, int kv) {
#if FL_HAS_MASK_MOD
  apply_mask_mod(s, params, rows, kv);
#endif
#if FL_END_APART
  mask_end(s, params, kv);
#endif
}

}  // namespace flashlift::cuda
