// The portable kernel that computes the softmax statistics of each row from its scores.
#pragma once

#include "cuda/kernels/common/row_sums.cuh"
#include "cuda/kernels/sm80/query_walk.cuh"

namespace flashlift::cuda {

extern "C" __global__ void __launch_bounds__(kThreads, kThreads > 128 ? 1 : 2)
    flashlift_backward_rows(const __grid_constant__ ForwardParams params,
                            const __grid_constant__ BackwardParams backward) {
  if (is_done(backward)) {
    return;
  }
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const SharedTiles shared(shared_memory);
  const QueryTile tile = query_tile(params, blockIdx.x);
  const QueryPlace rows_place = place_of(tile, 0);
  const Visits found = find_visits(params, tile);
  RowSums sums;
  for_each_tile(params, backward, tile, found, shared,
                [&](TileValues& s, TileValues& dp, int kv, bool partial, InputElement*) {
                  sum_tile(s, dp, sums, params, place_of(tile, kv), partial);
                });
  store_rows(sums, params, backward, rows_place);
}

}  // namespace flashlift::cuda
