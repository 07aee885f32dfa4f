// How a block of the portable backward kernels for queries processes the key tiles that its queries see. A warp has 16
// queries.
#pragma once

#include "cuda/kernels/sm80/backward_tiles.cuh"

namespace flashlift::cuda {

using QueryPlace = Place<false>;

// Q and d_out of the block's queries, and several stages of K and V.
struct SharedTiles {
  InputElement* q;
  InputElement* d_out;
  InputElement* k;
  InputElement* v;
  float* p;

  __device__ __forceinline__ explicit SharedTiles(unsigned char* memory)
      : q(reinterpret_cast<InputElement*>(memory)),
        d_out(q + FL_BLOCK_M * kQkRow),
        k(d_out + FL_BLOCK_M * kVRow),
        v(k + kStages * kKElements),
        p(reinterpret_cast<float*>(v + kStages * kVElements)) {}
};

// Computes <q, k> and <d_out, v> of all visited key tiles in sequence, and calls body(s, dp, first key, partial, keys)
// for each. Every thread of the block must call it.
template <typename Body>
__device__ __forceinline__ void for_each_tile(const ForwardParams& params, const BackwardParams& backward,
                                              const QueryTile& tile, const Visits& found, const SharedTiles& shared,
                                              const Body& body) {
  const int warp_row = threadIdx.x / 32 * 16;
  const int kv_head = tile.h / params.group;
  const int visits = found.partial + found.full;
  const bool halves = has_low_half(backward);
  VisitIterator iterator(params, tile, found);
  int kv_tile = 0;
  if (visits > 0) {
    load_tile<FL_BLOCK_M, FL_QK_DIM, kQkRow>(
        shared.q, [&](int row) { return query_row(params, tile.b, tile.h, row); }, params.q_strides.column, tile.row,
        params.q_len, FL_HEAD_DIM, params.vector_q);
    load_d_out<FL_BLOCK_M>(shared.d_out, params, backward, backward.d_out, tile.b, tile.h, tile.row);
    kv_tile = iterator.next();
    load_keys(shared.k, shared.v, params, tile.b, kv_head, kv_tile);
  }
  copy_commit();
#pragma unroll 1
  for (int i = 0; i < visits; ++i) {
    const int stage = i % kStages;
    int next_tile = 0;
    if (kStages > 1 && i + 1 < visits) {
      next_tile = iterator.next();
      const int next_stage = (i + 1) % kStages;
      load_keys(shared.k + next_stage * kKElements, shared.v + next_stage * kVElements, params, tile.b, kv_head,
                next_tile);
    }
    copy_commit();
    copy_wait<1>();
    __syncthreads();

    InputElement* const k = shared.k + stage * kKElements;
    const InputElement* const v = shared.v + stage * kVElements;
    TileValues s;
    TileValues dp;
    multiply_scores<FL_QK_DIM, kQkRow>(s, shared.q + warp_row * kQkRow, k);
    multiply_scores<FL_V_DIM, kVRow>(dp, shared.d_out + warp_row * kVRow, v);
    if (halves) {  // the lower half in place of the upper one, and back
      __syncthreads();
      load_d_out<FL_BLOCK_M>(shared.d_out, params, backward, backward.d_out_low, tile.b, tile.h, tile.row);
      finish_copies();
      add_scores<FL_V_DIM, kVRow>(dp, shared.d_out + warp_row * kVRow, v);
      __syncthreads();
      load_d_out<FL_BLOCK_M>(shared.d_out, params, backward, backward.d_out, tile.b, tile.h, tile.row);
      finish_copies();
    }
    body(s, dp, kv_tile * FL_BLOCK_N, i < found.partial, k);
    __syncthreads();
    if (kStages == 1 && i + 1 < visits) {
      next_tile = iterator.next();
      load_keys(shared.k, shared.v, params, tile.b, kv_head, next_tile);
      copy_commit();
      copy_wait<0>();
    }
    kv_tile = next_tile;
  }
}

__device__ __forceinline__ QueryPlace place_of(const QueryTile& tile, int kv) {
  const int lane = threadIdx.x % 32;
  const int row = tile.row + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  return {tile.b, tile.h, {row, row + 8}, kv + lane % 4 * 2};
}

// The statistics of a thread's two rows.
__device__ __forceinline__ void load_rows(RowGradient (&rows)[2], const ForwardParams& params,
                                          const BackwardParams& backward, const RowTiles& tiles,
                                          const QueryPlace& place) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows[r] = row_at(params, backward, tiles, place.b, place.h, place.rows[r]);
  }
}

}  // namespace flashlift::cuda
