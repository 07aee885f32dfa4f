// The portable backward kernels for queries, with 16 rows per warp: the softmax statistics of each row, and d_q.
#include "cuda/kernels/sm80/backward_rows.cuh"

namespace flashlift::cuda {
namespace {

__device__ __forceinline__ bool is_finite(InputElement x) {
  return fabsf(to_float(x)) < FL_INFINITY;
}

// Puts 0 in place of what is not finite: a masked key's gradient is 0 and must stay so, and that of a kept one is NaN
// already where its key is not finite.
__device__ __forceinline__ void clean_keys(InputElement* k) {
#pragma unroll 1
  for (int i = threadIdx.x; i < FL_BLOCK_N * kQkRow; i += kThreads) {
    if (!is_finite(k[i])) {
      k[i] = InputElement(0);
    }
  }
}

template <int kCount>
__device__ __forceinline__ bool has_nonfinite(const float (&sums)[kCount]) {
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    total += sums[i];
  }
  return !(fabsf(total) < FL_INFINITY);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kThreads > 128 ? 1 : 2)
    flashlift_backward_queries(const __grid_constant__ ForwardParams params,
                               const __grid_constant__ BackwardParams backward) {
  if (is_done(backward)) {
    return;
  }
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const SharedTiles shared(shared_memory);
  const QueryTile tile = query_tile(params, blockIdx.x);
  const QueryPlace rows_place = place_of(tile, 0);
  RowGradient rows[2];
  load_rows(rows, params, backward, {}, rows_place);
  const Visits found = find_visits(params, tile);
  float* const warp_p = shared.p + threadIdx.x / 32 * 16 * kPRow;
  float d_q[FL_QK_DIM / 2];
  // Keys that are not finite are rare, and masked ones must not count: looked for in the result.
  bool careful = false;
#pragma unroll 1
  for (;;) {
#pragma unroll
    for (int i = 0; i < FL_QK_DIM / 2; ++i) {
      d_q[i] = 0.0f;
    }
    for_each_tile(params, backward, tile, found, shared, [&](TileValues& s, TileValues& dp, int kv, bool partial, InputElement* k) {
      const QueryPlace place = place_of(tile, kv);
      finish_tile(
          s, dp, params, place, partial, [&](int i) { return rows[i / 2 % 2]; },
          [](int, float, float) {});
      if (careful) {
        __syncthreads();
        clean_keys(k);
        __syncthreads();
      }
      multiply_output<FL_QK_DIM, kQkRow>(d_q, dp, k, warp_p);
    });
    if (careful || !__syncthreads_or(has_nonfinite(d_q))) {
      break;
    }
    careful = true;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int q = rows_place.rows[r];
    if (q < params.q_len && backward.d_q != nullptr) {
      const Strides& strides = backward.d_q_strides;
      store_gradient_row(d_q, r, params.scale,
                         static_cast<InputElement*>(backward.d_q) + tile.b * strides.batch + tile.h * strides.head +
                             q * strides.row,
                         strides.column, backward.paired_d_q, 0, FL_HEAD_DIM);
    }
  }
}

}  // namespace flashlift::cuda
