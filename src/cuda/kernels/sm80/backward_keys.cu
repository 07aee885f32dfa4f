// The portable backward kernel for keys: d_k and d_v. One block processes a tile of keys and some of their columns,
// with 16 keys per warp. It iterates over the query tiles that see the keys, of all heads that share them, always in
// the same order.
#include "cuda/kernels/sm80/key_walk.cuh"

namespace flashlift::cuda {
namespace {

#if FL_EMPTY_UNIFORM
// A row without keys that gives the mean of all values passes its gradient on to each of them. Rare, so small code counts.
__device__ __forceinline__ void add_empty_rows(float (&d_v)[FL_V_CHUNK / 2], const ForwardParams& params,
                                               const BackwardParams& backward, const KeyTile& keys,
                                               const int (&key)[2], int first_column) {
  float sums[FL_V_CHUNK / 2];
#pragma unroll
  for (int i = 0; i < FL_V_CHUNK / 2; ++i) {
    sums[i] = d_v[i];
  }
  const float share = 1.0f / static_cast<float>(params.kv_len);
#pragma unroll 1
  for (int h = keys.kv_head * params.group; h < (keys.kv_head + 1) * params.group; ++h) {
    const RowGradient* rows = row_gradients(params, backward, keys.b, h);
#pragma unroll 1
    for (int q = 0; q < params.q_len; ++q) {
      if (rows[q].empty == 0) {
        continue;
      }
      const long long offset =
          keys.b * backward.d_out_strides.batch + h * backward.d_out_strides.head + q * backward.d_out_strides.row;
      bool keep[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        keep[r] = keeps_key(keys.b, h, q, key[r], params);
      }
#pragma unroll 1
      for (int i = 0; i < FL_V_CHUNK / 4; ++i) {
        const int column = first_column + i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
        if (column >= FL_VALUE_DIM) {
          continue;
        }
        const long long at = offset + column * backward.d_out_strides.column;
        float x = to_float(static_cast<const InputElement*>(backward.d_out)[at]);
#if FL_D_OUT_HALVES
        x += to_float(static_cast<const InputElement*>(backward.d_out_low)[at]);
#endif
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          sums[i / 2 * 4 + 2 * r + i % 2] += keep[r] ? x * share : 0.0f;
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < FL_V_CHUNK / 2; ++i) {
    d_v[i] = sums[i];
  }
}
#endif

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kThreads > 128 ? 1 : 2)
    flashlift_backward_keys(const __grid_constant__ ForwardParams params,
                            const __grid_constant__ BackwardParams backward) {
  if (is_done(backward)) {
    return;
  }
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const SharedKeyTiles shared(shared_memory);
  const KeyTile keys = key_tile_of(params, backward);
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * 16;
  const int key[2] = {keys.first + warp_row + lane / 4, keys.first + warp_row + lane / 4 + 8};
  const int d_column = static_cast<int>(blockIdx.y) * FL_D_CHUNK;
  const int v_column = static_cast<int>(blockIdx.y) * FL_V_CHUNK;
  float* const warp_p = shared.p + warp_row * kPRow;
  const bool halves = has_low_half(backward);

  float d_k[FL_D_CHUNK / 2] = {};
  float d_v[FL_V_CHUNK / 2] = {};
  for_each_query_tile(
      params, backward, {}, keys, shared,
      [&](TileValues& s, TileValues& dp, const KeyPlace& place, const QueryStage& stage, const QueryTiles::Tile& tile) {
        finish_tile(
            s, dp, params, place, tile.partial, [&](int e) { return stage.rows[place.column_of(e) - tile.q]; },
            [](int, float, float) {});
        multiply_output<FL_V_CHUNK, kVRow>(d_v, s, stage.d_out + v_column, warp_p);
        if (halves) {  // the upper half in place of the lower one
          __syncthreads();
          load_d_out<FL_BLOCK_N>(stage.d_out, params, backward, backward.d_out, keys.b, tile.h, tile.q);
          finish_copies();
          multiply_output<FL_V_CHUNK, kVRow>(d_v, s, stage.d_out + v_column, warp_p);
        }
        multiply_output<FL_D_CHUNK, kQkRow>(d_k, dp, stage.q + d_column, warp_p);
      });
#if FL_EMPTY_UNIFORM
  add_empty_rows(d_v, params, backward, keys, key, v_column);
#endif
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (key[r] >= params.kv_len) {
      continue;
    }
    const auto row = [&](void* tensor, const Strides& strides) {
      return static_cast<InputElement*>(tensor) + keys.b * strides.batch + keys.kv_head * strides.head +
             key[r] * strides.row;
    };
    if (backward.d_k != nullptr) {
      store_gradient_row(d_k, r, params.scale, row(backward.d_k, backward.d_k_strides), backward.d_k_strides.column,
                         backward.paired_d_k, d_column, FL_HEAD_DIM);
    }
    if (backward.d_v != nullptr) {
      store_gradient_row(d_v, r, params.dropout_factor, row(backward.d_v, backward.d_v_strides),
                         backward.d_v_strides.column, backward.paired_d_v, v_column, FL_VALUE_DIM);
    }
  }
}

}  // namespace flashlift::cuda
