// Shared code of the fused Hopper backward kernels: their key tiles, keys that are not finite, and the rounding of d_q's
// sums.
#pragma once

#include "cuda/kernels/sm90/backward_adder.cuh"
#include "cuda/kernels/sm90/backward_gradients.cuh"

namespace flashlift::cuda {

// The key tile of an index; there are no rings.
__device__ __forceinline__ KeyTile fused_key_tile(const ForwardParams& params, const BackwardParams& backward,
                                                  int index) {
  return key_tile<FL_BLOCK_M>(params, backward, index, backward.mirrored_heads);
}

// The block's own rows of the key tile in a stage, if there is one, as the producer has told of it. (By roles, two blocks
// share a key tile.)
__device__ __forceinline__ bool has_keys(const SharedLayout& shared, u32 stage) {
  return load_shared_once(shared.key_tile + 4 * (kKeyFieldCount * stage + kKeyNumber)) != kNoKeys;
}
__device__ __forceinline__ KeyRows keys_of_block(const SharedLayout& shared, u32 stage) {
  const u32 fields = shared.key_tile + 4 * kKeyFieldCount * stage;
  return {load_shared_once(fields + 4 * kKeyBatch), load_shared_once(fields + 4 * kKeyHead),
          load_shared_once(fields + 4 * kKeyFirst)};
}

__device__ __forceinline__ bool has_nonfinite_half(u32 pair) {
  constexpr u32 kExponent = FL_BF16 ? 0x7f80 : 0x7c00;
  return (pair & kExponent) == kExponent || (pair >> 16 & kExponent) == kExponent;
}

// A key that no query may see, but whose elements are not finite, would make 0 * inf of d_s * k. Its queries are left
// to the kernel for queries, which knows how to deal with it.
__device__ __forceinline__ void look_for_nonfinite_keys(const SharedLayout& shared, const RowTiles& tiles) {
  bool found = false;
#pragma unroll 1
  for (u32 turn = 0;; ++turn) {
    const u32 stage = turn % kKeyStages;
    barrier_wait(shared.rows_full + 8 * stage, turn / kKeyStages % 2);
    if (!has_keys(shared, stage)) {
      break;
    }
#pragma unroll 1
    for (u32 at = 16 * (threadIdx.x % 32); at < kRowsQkBytes; at += 16 * 32) {
      u32 x[4];
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(shared.rows_qk + stage * kRowsQkBytes + at)
                   : "memory");
      found |=
          has_nonfinite_half(x[0]) || has_nonfinite_half(x[1]) || has_nonfinite_half(x[2]) || has_nonfinite_half(x[3]);
    }
    release(shared.rows_empty + 8 * stage);
  }
  if (found) {
    *tiles.nonfinite_keys = 1;
  }
}

// d_q of a part from its sums, or zeros where no key has been seen.
__device__ __forceinline__ void round_part(const ForwardParams& params, const BackwardParams& backward,
                                           const RowTiles& tiles, int place, bool seen) {
  const int tile = place / kParts;
  const int head = tile / tiles.tiles;
  const int first = tile % tiles.tiles * tiles.rows;
  const float4* const sums =
      reinterpret_cast<const float4*>(tiles.d_q_sums + static_cast<long long>(place) * kPartFloats);
  // A thread takes eight columns of two rows at a time: what four threads had, 64 bytes that lie together. Four
  // neighbours write 64 bytes of a row.
  constexpr int kEights = kPartColumns / 8;
  constexpr int kPieces = (kEights + 3) / 4;
  const int thread = static_cast<int>(threadIdx.x);
  const auto of_part = [&](int piece) { return kEights % 4 == 0 || thread % 4 + 4 * piece < kEights; };
  float4 x[kPieces][4];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int from = (thread % 4 + 4 * piece) * 128 + thread / 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[piece][i] = seen && of_part(piece) ? __ldcs(sums + from + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }
  const int part = place % kParts;
  const Strides& strides = backward.d_q_strides;
  InputElement* const rows = static_cast<InputElement*>(backward.d_q) + head / params.q_heads * strides.batch +
                             head % params.q_heads * strides.head;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const int column = (kPartsOfQueries ? 0 : kPartColumns * part) + 8 * (thread % 4 + 4 * piece);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int q = first + (kPartsOfQueries ? 64 * part : 0) + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
      if (q < params.q_len && of_part(piece)) {
        u32 packed[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 four = x[piece][i];
          packed[i] = pack_half((r == 0 ? four.x : four.z) * params.scale, (r == 0 ? four.y : four.w) * params.scale);
        }
        store_eight<FL_HEAD_DIM>(rows + q * strides.row, strides.column, backward.vector_d_q != 0, column, packed);
      }
    }
  }
}

// What consumers have not rounded. A block takes some parts that lie together, the last ones first: their sums are the
// ones that the L2 cache may still have. Where most parts are stored already, it is over when it knows so.
extern "C" __global__ void __launch_bounds__(128)
    flashlift_backward_round(const __grid_constant__ ForwardParams params,
                             const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles) {
  if (others_run(backward, tiles)) {
    return;
  }
  const int places = params.batch * params.q_heads * tiles.tiles * kParts;
  const int count = (places + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  const int end = places - static_cast<int>(blockIdx.x) * count;
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
  for (int last = end - 1; last >= max(end - count, 0); last -= 32) {
    const int place = last - lane;
    const bool exists = place >= max(end - count, 0) && place / kParts % tiles.tiles * tiles.rows < params.q_len;
    const int last_adder = exists ? tiles.last_adders[place] : kStored;
    const u32 seen = __ballot_sync(0xffffffff, last_adder != 0);
    u32 left = __ballot_sync(0xffffffff, last_adder != kStored);
#pragma unroll 1
    while (left != 0) {
      const int bit = __ffs(left) - 1;
      left &= left - 1;
      round_part(params, backward, tiles, last - bit, (seen >> bit & 1) != 0);
    }
  }
}

}  // namespace flashlift::cuda
