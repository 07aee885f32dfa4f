// The gradients of captured tensors, for all main kernels. All sums have the same bits in every run: threads add in a fixed
// order, and blocks add exactly (exact_sum.cuh) or write elements that are theirs alone.
//
// Each load of a captured tensor belongs to one of three kernels. All compute the scores again, with <d_out, v>.
// - Most loads: a block processes a tile of queries and the keys that these see.
// - Loads that read one element for all queries of a head: a block processes a tile of keys and the queries that see them.
// - Planes, where the indices of the load have both the query and the key: a block processes a tile of the plane and all
//   heads that share its elements, so that each element has one thread.
#include "cuda/kernels/common/diagonals.cuh"
#include "cuda/kernels/sm80/backward_rows.cuh"
#include "cuda/kernels/sm80/key_walk.cuh"

namespace flashlift::cuda {

#if FL_QUERY_GRADIENTS

extern "C" __global__ void __launch_bounds__(kThreads, kThreads > 128 ? 1 : 2)
    flashlift_query_gradients(const __grid_constant__ ForwardParams params,
                              const __grid_constant__ BackwardParams backward,
                              const __grid_constant__ RowTiles row_tiles,
                              const __grid_constant__ ElementTables shapes) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const SharedTiles shared(shared_memory);
  const QueryTile tile = query_tile(params, blockIdx.x);
  const QueryPlace rows_place = place_of(tile, 0);
  RowGradient rows[2];
  load_rows(rows, params, backward, row_tiles, rows_place);
  const Visits found = find_visits(params, tile);
  GradientSums sums{};
  auto* memory = reinterpret_cast<float*>(shared.p + kPElements);
#if FL_DIAGONAL_GRADIENTS
  using Sums = Diagonals<FL_BLOCK_M, kThreads>;
  Sums diagonals(params, backward, rows_place.b, rows_place.h, tile.row, memory);
  memory += Sums::kElements;
#endif
  BlockTables tables(shapes, shared_address(memory));
  tables.clear(static_cast<int>(threadIdx.x), kThreads);
  __syncthreads();
  for_each_tile(params, backward, tile, found, shared,
                [&](TileValues& s, TileValues& dp, int kv, bool partial, InputElement*) {
                  const QueryPlace place = place_of(tile, kv);
                  [[maybe_unused]] TileValues of_diagonal;
                  finish_tile(
                      s, dp, params, place, partial, [&](int i) { return rows[i / 2 % 2]; },
                      [&](int i, float ds, float product) {
                        const int q = place.q(i);
                        of_diagonal[i] = add_captured(ds, product, gradient_row(place.b, place.h, q, params),
                                                         gradient_column(place.b, place.kv(i), params), place.b,
                                                         place.h, q, place.kv(i), 0, params, backward.gradients, sums,
                                                         tables, i / 2 % 2);
                      });
#if FL_DIAGONAL_GRADIENTS
                  diagonals.add(of_diagonal, kv, [] { __syncthreads(); });
#endif
                });
#if FL_DIAGONAL_GRADIENTS
  diagonals.finish();
#endif
  add_captured_elements(sums, tables, tile.b, tile.h, 0, 0, params, backward.gradients);
  __syncthreads();
  add_captured_tables(tables, static_cast<int>(threadIdx.x), kThreads, tile.b, tile.h, 0, 0, params,
                      backward.gradients);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int q = rows_place.rows[r];
    add_captured_rows(sums, r, tile.b, tile.h, min(q, params.q_len - 1), q < params.q_len, params, backward.gradients);
  }
}

#endif

#if FL_KEY_GRADIENTS

extern "C" __global__ void __launch_bounds__(kThreads, kThreads > 128 ? 1 : 2)
    flashlift_key_gradients(const __grid_constant__ ForwardParams params,
                            const __grid_constant__ BackwardParams backward,
                            const __grid_constant__ RowTiles row_tiles) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const SharedKeyTiles shared(shared_memory);
  const KeyTile keys = key_tile_of(params, backward);
  const int key = keys.first + static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  GradientSums sums{};
  int head = -1;
  const auto add_sums = [&] {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int kv = key + 8 * r;
      add_captured_keys(sums, r, kv < params.kv_len, keys.b, head, 0, min(kv, params.kv_len - 1), params,
                        backward.gradients);
    }
    sums = {};
  };
  for_each_query_tile(
      params, backward, row_tiles, keys, shared,
      [&](TileValues& s, TileValues& dp, const KeyPlace& place, const QueryStage& stage, const QueryTiles::Tile& tile) {
        if (head >= 0 && tile.h != head) {  // the element may be another head's
          add_sums();
        }
        head = tile.h;
        finish_tile(
            s, dp, params, place, tile.partial, [&](int e) { return stage.rows[place.column_of(e) - tile.q]; },
            [&](int i, float ds, float product) {
              const int q = place.q(i);
              add_captured_key(ds, product, gradient_row(place.b, place.h, q, params),
                               gradient_column(place.b, place.kv(i), params), place.b, place.h, q, place.kv(i), 0,
                               params, sums, i / 2 % 2);
            });
      });
  if (head >= 0) {
    add_sums();
  }
}

#endif

#if FL_PLANE_GRADIENTS

// Blocks have the tiles of a plane one after the other, and then those of the next one.
extern "C" __global__ void __launch_bounds__(kThreads, kThreads > 128 ? 1 : 2)
    flashlift_plane_gradients(const __grid_constant__ ForwardParams params,
                              const __grid_constant__ BackwardParams backward,
                              const __grid_constant__ RowTiles row_tiles, const __grid_constant__ PlaneLoad plane) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const SharedTiles shared(shared_memory);
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16;
  const int kv_tiles = kv_tile_count(params);
  const int kv_tile = static_cast<int>(blockIdx.x) % kv_tiles;
  const int q_tile = static_cast<int>(blockIdx.x) / kv_tiles % params.q_tiles;
  const int own_head = static_cast<int>(blockIdx.x) / kv_tiles / params.q_tiles;
  const int own_b = own_head / plane.heads;
  const int own_h = own_head % plane.heads;
  const int last_b = plane.batches > 1 ? own_b : params.batch - 1;
  const int last_h = plane.heads > 1 ? own_h : params.q_heads - 1;
  const int kv = kv_tile * FL_BLOCK_N;
  const int kv_last = min(kv + FL_BLOCK_N, params.kv_len) - 1;
  const bool halves = has_low_half(backward);
  TileValues sums;
#pragma unroll
  for (int i = 0; i < FL_BLOCK_N / 2; ++i) {
    sums[i] = 0.0f;
  }
#pragma unroll 1
  for (int b = own_b; b <= last_b; ++b) {
#pragma unroll 1
    for (int h = own_h; h <= last_h; ++h) {
      const QueryTile tile = tile_at(params, b, h, q_tile * FL_BLOCK_M);
      const bool whole = tile.last_row - tile.row == FL_BLOCK_M - 1 && kv_last - kv == FL_BLOCK_N - 1;
      const TileKind kind = classify_scores(params, b, h, tile.row, tile.last_row, kv, kv_last, whole);
      if (kind == kTileSkipped) {
        continue;
      }
      load_tile<FL_BLOCK_M, FL_QK_DIM, kQkRow>(
          shared.q, [&](int row) { return query_row(params, b, h, row); }, params.q_strides.column, tile.row,
          params.q_len, FL_HEAD_DIM, params.vector_q);
      load_d_out<FL_BLOCK_M>(shared.d_out, params, backward, backward.d_out, b, h, tile.row);
      load_keys(shared.k, shared.v, params, b, h / params.group, kv_tile);
      const QueryPlace place = place_of(tile, kv);
      RowGradient rows[2];
      load_rows(rows, params, backward, row_tiles, place);
      finish_copies();
      TileValues s;
      TileValues dp;
      multiply_scores<FL_QK_DIM, kQkRow>(s, shared.q + warp_row * kQkRow, shared.k);
      multiply_scores<FL_V_DIM, kVRow>(dp, shared.d_out + warp_row * kVRow, shared.v);
      if (halves) {
        __syncthreads();
        load_d_out<FL_BLOCK_M>(shared.d_out, params, backward, backward.d_out_low, b, h, tile.row);
        finish_copies();
        add_scores<FL_V_DIM, kVRow>(dp, shared.d_out + warp_row * kVRow, shared.v);
      }
      finish_tile(
          s, dp, params, place, is_partial(kind), [&](int i) { return rows[i / 2 % 2]; },
          [&](int i, float ds, float product) {
            const int q = place.q(i);
            sums[i] += plane_gradient(plane.load, ds, product, gradient_row(b, h, q, params),
                                      gradient_column(b, place.kv(i), params), b, h, q, place.kv(i), 0, params);
          });
      __syncthreads();
    }
  }
  const QueryPlace place = place_of(tile_at(params, own_b, own_h, q_tile * FL_BLOCK_M), kv);
#pragma unroll
  for (int i = 0; i < FL_BLOCK_N / 2; ++i) {
    if (place.q(i) < params.q_len && place.kv(i) < params.kv_len) {
      store_plane(plane.load, sums[i], own_b, own_h, place.q(i), place.kv(i), params, backward.gradients);
    }
  }
}

#endif

}  // namespace flashlift::cuda
