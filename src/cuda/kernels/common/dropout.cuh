// Dropout: which probabilities are kept. docs/problem.md defines it.
#pragma once

#include "cuda/kernels/common/forward_params.h"
#include "cuda/kernels/common/softmax.cuh"

namespace flashlift::cuda {

struct PhiloxWords {
  u32 x[4];
};

// A compile-time choice: loaded words would occupy registers throughout a kernel's loop, which has few to spare.
__device__ __forceinline__ u32 given_word(int i, const ForwardParams& params) {
#if FL_DROPOUT_WORDS
  return i < params.device_dropout_count ? __ldg(params.device_dropout_words + i) : 0;
#else
  return params.dropout_words[i];
#endif
}

// Philox4x32 (Salmon et al., 2011) with seven rounds.
__device__ __forceinline__ PhiloxWords philox(u32 x, u32 y, u32 z, u32 w, const ForwardParams& params) {
  u32 key0 = given_word(0, params);
  u32 key1 = given_word(1, params);
#pragma unroll
  for (int round = 0; round < 7; ++round) {
    const u64 first = u64{0xd2511f53u} * x;
    const u64 second = u64{0xcd9e8d57u} * z;
    x = static_cast<u32>(second >> 32) ^ y ^ key0;
    y = static_cast<u32>(second);
    z = static_cast<u32>(first >> 32) ^ w ^ key1;
    w = static_cast<u32>(first);
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return {{x, y, z, w}};
}

__device__ __forceinline__ PhiloxWords dropout_words(int b, int h, int q, int kv, const ForwardParams& params) {
  return philox(static_cast<u32>(kv / 64 * 16 + kv % 16), static_cast<u32>(q),
                static_cast<u32>(h) + given_word(3, params), static_cast<u32>(b) + given_word(2, params), params);
}

__device__ __forceinline__ bool keeps_key(int b, int h, int q, int kv, const ForwardParams& params) {
#if FL_DROPOUT && FL_KEEP_MASK
  // A tile's rows and columns may lie beyond the problem's.
  return q < params.q_len && kv < params.kv_len &&
         params.keep[b * params.keep_strides[0] + h * params.keep_strides[1] + q * params.keep_strides[2] +
                     kv * params.keep_strides[3]] != 0;
#elif FL_DROPOUT
  const PhiloxWords words = dropout_words(b, h, q, kv, params);
  const int word = kv / 16 % 4;
  const u32 x = word < 2 ? (word == 0 ? words.x[0] : words.x[1]) : (word == 2 ? words.x[2] : words.x[3]);
  return x >= params.dropout_threshold;
#else
  return true;
#endif
}

// Sets the dropped probabilities of a tile to 0 (layout: softmax.cuh). `kv` is the thread's first column.
template <int kCount>
__device__ __forceinline__ void drop_out(float (&p)[kCount], const ForwardParams& params, const Rows& rows, int kv) {
#if FL_DROPOUT && FL_KEEP_MASK
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int r = i / 2 % 2;
    p[i] = keeps_key(rows.b, rows.h[r], rows.q[r], kv + i / 4 * 8 + i % 2, params) ? p[i] : 0.0f;
  }
#elif FL_DROPOUT
  // Keys that use the words of one counter are 16 apart.
  constexpr int kKeys = 2 * kCount;
  constexpr int kGroup = kKeys < 64 ? kKeys : 64;
  constexpr int kWords = kGroup / 16;
  static_assert(kKeys % kGroup == 0 && 64 % kGroup == 0 && kGroup % 16 == 0,
                "tiles must consist of whole groups of 64 keys, or these of tiles");
#pragma unroll
  for (int group = 0; group < kKeys / kGroup; ++group) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {  // which of two columns, of two blocks of 8 columns, of two rows
      const int c = i % 2;
      const int block = i / 2 % 2;
      const int r = i / 4;
      const int first = kv + group * kGroup;
      const PhiloxWords words = dropout_words(rows.b, rows.h[r], rows.q[r], first + 8 * block + c, params);
      const int first_word = kWords == 4 ? 0 : first / 16 % 4;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        u32 word = words.x[w];
        if (kWords < 4) {
          const int at = first_word + w;
          word = at < 2 ? (at == 0 ? words.x[0] : words.x[1]) : (at == 2 ? words.x[2] : words.x[3]);
        }
        float& x = p[4 * (group * kGroup / 8 + 2 * w + block) + 2 * r + c];
        x = word >= params.dropout_threshold ? x : 0.0f;
      }
    }
  }
#endif
}

}  // namespace flashlift::cuda
