// How a block of the portable backward kernels for keys processes the query tiles that see its keys, head by head and always
// in the same order. A warp has 16 keys.
#pragma once

#include "cuda/kernels/common/key_tiles.cuh"
#include "cuda/kernels/sm80/backward_tiles.cuh"

namespace flashlift::cuda {

// The rows of its tiles are FL_BLOCK_M keys, the columns FL_BLOCK_N queries.
using KeyPlace = Place<true>;

__device__ __forceinline__ TileKind query_tile_kind(const ForwardParams& params, const KeyTile& keys, int h, int tile) {
  const int q_first = tile * FL_BLOCK_N;
  if (q_first >= params.q_len) {
    return kTileSkipped;
  }
  const int q_last = min(q_first + FL_BLOCK_N, params.q_len) - 1;
  return classify_scores(params, keys.b, h, q_first, q_last, keys.first, keys.last,
                         q_last - q_first == FL_BLOCK_N - 1);
}

// The query tiles that see the keys, head by head. A warp classifies 32 at a time.
class QueryTiles {
 public:
  __device__ __forceinline__ QueryTiles(const ForwardParams& params, const KeyTile& keys)
      : params_(params), keys_(keys), head_(keys.kv_head * params.group) {}

  struct Tile {
    int h = -1;  // -1: there are no more
    int q = 0;
    bool partial = false;
  };
  __device__ __forceinline__ Tile next() {
    const int tiles = (params_.q_len + FL_BLOCK_N - 1) / FL_BLOCK_N;
    while (hits_ == 0) {
      if (first_ >= tiles) {
        first_ = 0;
        ++head_;
      }
      if (head_ == (keys_.kv_head + 1) * params_.group) {
        return {};
      }
      const TileKind kind = query_tile_kind(params_, keys_, head_, first_ + static_cast<int>(threadIdx.x % 32));
      hits_ = __ballot_sync(0xffffffff, kind != kTileSkipped);
      partial_ = __ballot_sync(0xffffffff, is_partial(kind));
      base_ = first_;
      first_ += 32;
    }
    const int bit = __ffs(hits_) - 1;
    hits_ &= hits_ - 1;
    return {head_, (base_ + bit) * FL_BLOCK_N, (partial_ >> bit & 1) != 0};
  }

 private:
  const ForwardParams& params_;
  const KeyTile& keys_;
  int head_;
  int first_ = 0;
  int base_ = 0;
  u32 hits_ = 0;
  u32 partial_ = 0;
};

// Q, d_out and the statistics of a tile of queries.
struct QueryStage {
  InputElement* q;
  InputElement* d_out;
  RowGradient* rows;
};

// K and V of the block's keys, and several stages of queries.
struct SharedKeyTiles {
  InputElement* k;
  InputElement* v;
  InputElement* q;
  InputElement* d_out;
  RowGradient* rows;
  float* p;

  __device__ __forceinline__ explicit SharedKeyTiles(unsigned char* memory)
      : k(reinterpret_cast<InputElement*>(memory)),
        v(k + FL_BLOCK_M * kQkRow),
        q(v + FL_BLOCK_M * kVRow),
        d_out(q + kStages * kKElements),
        rows(reinterpret_cast<RowGradient*>(d_out + kStages * kVElements)),
        p(reinterpret_cast<float*>(rows + kStages * FL_BLOCK_N)) {}

  __device__ __forceinline__ QueryStage stage(int i) const {
    return {q + i * kKElements, d_out + i * kVElements, rows + i * FL_BLOCK_N};
  }
};

__device__ __forceinline__ void load_queries(const QueryStage& stage, const ForwardParams& params,
                                             const BackwardParams& backward, const RowTiles& tiles, int b,
                                             const QueryTiles::Tile& tile) {
  load_tile<FL_BLOCK_N, FL_QK_DIM, kQkRow>(
      stage.q, [&](int row) { return query_row(params, b, tile.h, row); }, params.q_strides.column, tile.q,
      params.q_len, FL_HEAD_DIM, params.vector_q);
  load_d_out<FL_BLOCK_N>(stage.d_out, params, backward, backward.d_out, b, tile.h, tile.q);
#if FL_ROW_TILES
  for (int i = threadIdx.x; i < FL_BLOCK_N; i += kThreads) {
    stage.rows[i] = row_at(params, backward, tiles, b, tile.h, tile.q + i);
  }
#else
  const RowGradient* rows = row_gradients(params, backward, b, tile.h);
  for (int i = threadIdx.x; i < FL_BLOCK_N; i += kThreads) {
    const bool inside = tile.q + i < params.q_len;
    copy_async(shared_address(stage.rows + i), rows + (inside ? tile.q + i : 0), inside);
  }
#endif
}

// The block's keys, where one block has all of a tile's columns or several have some each.
__device__ __forceinline__ KeyTile key_tile_of(const ForwardParams& params, const BackwardParams& backward) {
  const int pair = static_cast<int>(blockIdx.x) / backward.kv_tiles;
  const int index = static_cast<int>(blockIdx.x) - pair * backward.kv_tiles;
  const int first = index * FL_BLOCK_M;
  return {{pair / params.kv_heads, pair % params.kv_heads, first}, min(first + FL_BLOCK_M, params.kv_len) - 1, index};
}

// Computes <k, q> and <v, d_out> of all query tiles that see the keys, in sequence, and calls
// body(s, dp, place, stage, tile) for each. Every thread of the block must call it.
template <typename Body>
__device__ __forceinline__ void for_each_query_tile(const ForwardParams& params, const BackwardParams& backward,
                                                    const RowTiles& row_tiles, const KeyTile& keys,
                                                    const SharedKeyTiles& shared, const Body& body) {
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * 16;
  const int key = keys.first + warp_row + lane / 4;
  load_tile<FL_BLOCK_M, FL_QK_DIM, kQkRow>(
      shared.k, [&](int row) { return key_row(params.k, params.k_strides, params, keys.b, keys.kv_head, row); },
      params.k_strides.column, keys.first, params.kv_len, FL_HEAD_DIM, params.vector_k);
  load_tile<FL_BLOCK_M, FL_V_DIM, kVRow>(
      shared.v, [&](int row) { return key_row(params.v, params.v_strides, params, keys.b, keys.kv_head, row); },
      params.v_strides.column, keys.first, params.kv_len, FL_VALUE_DIM, params.vector_v);
  const bool halves = has_low_half(backward);
  QueryTiles tiles(params, keys);
  QueryTiles::Tile tile = tiles.next();
  if (tile.h >= 0) {
    load_queries(shared.stage(0), params, backward, row_tiles, keys.b, tile);
  }
  copy_commit();
#pragma unroll 1
  for (int i = 0; tile.h >= 0; ++i) {
    const QueryStage now = shared.stage(i % kStages);
    const QueryTiles::Tile next = tiles.next();
    if (kStages > 1 && next.h >= 0) {
      load_queries(shared.stage((i + 1) % kStages), params, backward, row_tiles, keys.b, next);
    }
    copy_commit();
    copy_wait<1>();
    __syncthreads();

    TileValues s;
    TileValues dp;
    multiply_scores<FL_QK_DIM, kQkRow>(s, shared.k + warp_row * kQkRow, now.q);
    multiply_scores<FL_V_DIM, kVRow>(dp, shared.v + warp_row * kVRow, now.d_out);
    if (halves) {  // the lower half in place of the upper one
      __syncthreads();
      load_d_out<FL_BLOCK_N>(now.d_out, params, backward, backward.d_out_low, keys.b, tile.h, tile.q);
      finish_copies();
      add_scores<FL_V_DIM, kVRow>(dp, shared.v + warp_row * kVRow, now.d_out);
    }
    body(s, dp, KeyPlace{keys.b, tile.h, {key, key + 8}, tile.q + lane % 4 * 2}, now, tile);
    __syncthreads();
    if (kStages == 1 && next.h >= 0) {
      load_queries(shared.stage(0), params, backward, row_tiles, keys.b, next);
      copy_commit();
      copy_wait<0>();
    }
    tile = next;
  }
}

}  // namespace flashlift::cuda
