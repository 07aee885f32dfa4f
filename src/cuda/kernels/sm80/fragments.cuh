// Products of a warp with both operands in shared memory, each a PanelTile (panels.cuh). A warp has some fragments of
// 16 rows, whose matrices share each matrix of B that is loaded, and some pairs of 8 columns (layout: softmax.cuh).
#pragma once

#include "cuda/kernels/sm80/panels.cuh"

namespace flashlift::cuda {

// A: rows of the tile from `first` on; the sum runs over its columns.
template <typename Tile>
struct LeftRows {
  typename Tile::Lane lane;
  __device__ __forceinline__ LeftRows(u32 tile, u32 first) {
    const u32 thread = opaque(threadIdx.x) % 32;
    lane = Tile::lane(tile, first + thread % 16, thread / 16);
  }
  __device__ __forceinline__ void load(u32 (&x)[4], int fragment, int step) const {
    load_matrices(x, Tile::address(lane, 16 * fragment, 16 * step));
  }
};

// A: the transposed tile, its columns from `first` on, a multiple of 32, over its rows. The warp has 32 of them.
template <typename Tile>
struct LeftColumns {
  typename Tile::Lane lane;
  __device__ __forceinline__ LeftColumns(u32 tile, u32 first) {
    const u32 thread = opaque(threadIdx.x) % 32;
    lane = Tile::lane(tile + first / 64 * (Tile::kRows * 128), thread / 16 * 8 + thread % 8,
                      first % 64 / kChunkElements + thread / 8 % 2);
  }
  __device__ __forceinline__ void load(u32 (&x)[4], int fragment, int step) const {
    load_matrices_transposed(x, Tile::address(lane, 16 * step, 16 * fragment));
  }
};

// B: the transposed tile, its rows from `first` on, over its columns.
template <typename Tile>
struct RightRows {
  typename Tile::Lane lane;
  __device__ __forceinline__ RightRows(u32 tile, u32 first) {
    const u32 thread = opaque(threadIdx.x) % 32;
    lane = Tile::lane(tile, first + thread / 16 * 8 + thread % 8, thread / 8 % 2);
  }
  __device__ __forceinline__ void load(u32 (&x)[4], int pair, int step) const {
    load_matrices(x, Tile::address(lane, 16 * pair, 16 * step));
  }
};

// B: columns of the tile, of which each of kWarps warps takes every kWarps-th 16, over its rows. Four warps share a last
// panel of 32 columns: each takes 8.
template <typename Tile, int kWarps>
struct RightColumns {
  static constexpr int kRest = Tile::kColumns % (16 * kWarps);
  static_assert(kWarps <= 4 && (kRest == 0 || (kWarps == 4 && kRest == 32)), "whole columns, within one panel");
  typename Tile::Lane lane;
  u32 rest;  // of its 8 columns
  __device__ __forceinline__ RightColumns(u32 tile, u32 warp) {
    const u32 thread = opaque(threadIdx.x) % 32;
    lane = Tile::lane(tile, thread % 16, 2 * warp + thread / 16);
    rest = tile + Tile::kHalfOffset + chunk_offset<32>(thread % 16, warp);
  }
  __device__ __forceinline__ void load(u32 (&x)[4], int pair, int step) const {
    load_matrices_transposed(x, Tile::address(lane, 16 * step, 16 * kWarps * pair));
  }
  __device__ __forceinline__ void load_rest(u32 (&x)[2], int step) const {
    load_matrices_transposed(x, rest + 16 * step * 64);
  }
};

template <int kFragments, int kCount>
__device__ __forceinline__ void clear(float (&sums)[kFragments][kCount]) {
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sums[f][i] = 0.0f;
    }
  }
}

// sums += A * B, over kSteps times 16. Loads matrices one step ahead of the products that use them. Calls between(i), i
// from 0 to kSteps * kCount / 8 - 1, after the products of each pair of columns in each step.
template <int kSteps, typename Left, typename Right, int kFragments, int kCount, typename Between>
__device__ __forceinline__ void multiply(float (&sums)[kFragments][kCount], const Left& left, const Right& right,
                                         const Between& between) {
  constexpr int kPairs = kCount / 8;
  constexpr bool kRest = kCount % 8 != 0;  // 8 more columns
  u32 a[2][kFragments][4];
  u32 b[2][4];
  u32 rest[2][2];
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    left.load(a[0][f], f, 0);
  }
  right.load(b[0], 0, 0);
  if constexpr (kRest) {
    right.load_rest(rest[0], 0);
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int i = step * kPairs + pair;
      if (i + 1 < kSteps * kPairs) {
        right.load(b[(i + 1) % 2], (i + 1) % kPairs, (i + 1) / kPairs);
      }
      if (pair == 0 && step + 1 < kSteps) {
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          left.load(a[(step + 1) % 2][f], f, step + 1);
        }
        if constexpr (kRest) {
          right.load_rest(rest[(step + 1) % 2], step + 1);
        }
      }
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        multiply_add(sums[f] + 8 * pair, a[step % 2][f], b[i % 2][0], b[i % 2][1]);
        multiply_add(sums[f] + 8 * pair + 4, a[step % 2][f], b[i % 2][2], b[i % 2][3]);
      }
      between(i);
    }
    if constexpr (kRest) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        multiply_add(sums[f] + 8 * kPairs, a[step % 2][f], rest[step % 2][0], rest[step % 2][1]);
      }
    }
  }
}

template <int kSteps, typename Left, typename Right, int kFragments, int kCount>
__device__ __forceinline__ void multiply(float (&sums)[kFragments][kCount], const Left& left, const Right& right) {
  multiply<kSteps>(sums, left, right, [](int) {});
}

}  // namespace flashlift::cuda
