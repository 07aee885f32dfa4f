// The portable backward kernel for keys: d_k and d_v. One block processes a tile of keys and some of their columns,
// with 16 keys per warp. It iterates over the query tiles that see the keys, of all heads that share them, always in
// the same order.
#include "cuda/kernels/common/key_tiles.cuh"
#include "cuda/kernels/sm80/backward_tiles.cuh"

namespace flashlift::cuda {
namespace {

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

struct Stage {
  InputElement* q;
  InputElement* d_out;
  RowGradient* rows;
};

__device__ __forceinline__ void load_queries(const Stage& stage, const ForwardParams& params,
                                             const BackwardParams& backward, int b, const QueryTiles::Tile& tile) {
  load_tile<FL_BLOCK_N, FL_QK_DIM, kQkRow>(
      stage.q, [&](int row) { return query_row(params, b, tile.h, row); }, params.q_strides.column, tile.q,
      params.q_len, FL_HEAD_DIM, params.vector_q);
  load_d_out<FL_BLOCK_N>(stage.d_out, params, backward, backward.d_out, b, tile.h, tile.q);
  const RowGradient* rows = row_gradients(params, backward, b, tile.h);
  for (int i = threadIdx.x; i < FL_BLOCK_N; i += kThreads) {
    const bool inside = tile.q + i < params.q_len;
    copy_async(shared_address(stage.rows + i), rows + (inside ? tile.q + i : 0), inside);
  }
}

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
  InputElement* const k = reinterpret_cast<InputElement*>(shared_memory);
  InputElement* const v = k + FL_BLOCK_M * kQkRow;
  InputElement* const q = v + FL_BLOCK_M * kVRow;
  InputElement* const d_out = q + kStages * kKElements;
  RowGradient* const rows = reinterpret_cast<RowGradient*>(d_out + kStages * kVElements);
  float* const shared_p = reinterpret_cast<float*>(rows + kStages * FL_BLOCK_N);
  const auto stage = [&](int i) {
    return Stage{q + i * kKElements, d_out + i * kVElements, rows + i * FL_BLOCK_N};
  };

  const int pair = static_cast<int>(blockIdx.x) / backward.kv_tiles;
  const int tile_index = static_cast<int>(blockIdx.x) - pair * backward.kv_tiles;
  const int first_key = tile_index * FL_BLOCK_M;
  const KeyTile keys{tile_index, pair / params.kv_heads, pair % params.kv_heads, first_key,
                     min(first_key + FL_BLOCK_M, params.kv_len) - 1};
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * 16;
  const int key[2] = {first_key + warp_row + lane / 4, first_key + warp_row + lane / 4 + 8};
  const int d_column = static_cast<int>(blockIdx.y) * FL_D_CHUNK;
  const int v_column = static_cast<int>(blockIdx.y) * FL_V_CHUNK;
  float* const warp_p = shared_p + warp_row * kPRow;

  load_tile<FL_BLOCK_M, FL_QK_DIM, kQkRow>(
      k, [&](int row) { return key_row(params.k, params.k_strides, params, keys.b, keys.kv_head, row); },
      params.k_strides.column, first_key, params.kv_len, FL_HEAD_DIM, params.vector_k);
  load_tile<FL_BLOCK_M, FL_V_DIM, kVRow>(
      v, [&](int row) { return key_row(params.v, params.v_strides, params, keys.b, keys.kv_head, row); },
      params.v_strides.column, first_key, params.kv_len, FL_VALUE_DIM, params.vector_v);

  float d_k[FL_D_CHUNK / 2] = {};
  float d_v[FL_V_CHUNK / 2] = {};
  const bool halves = has_low_half(backward);
  QueryTiles tiles(params, keys);
  QueryTiles::Tile tile = tiles.next();
  if (tile.h >= 0) {
    load_queries(stage(0), params, backward, keys.b, tile);
  }
  copy_commit();
#pragma unroll 1
  for (int i = 0; tile.h >= 0; ++i) {
    const Stage now = stage(i % kStages);
    const QueryTiles::Tile next = tiles.next();
    if (kStages > 1 && next.h >= 0) {
      load_queries(stage((i + 1) % kStages), params, backward, keys.b, next);
    }
    copy_commit();
    copy_wait<1>();
    __syncthreads();

    float s[FL_BLOCK_N / 2];
    float dp[FL_BLOCK_N / 2];
    multiply_scores<FL_QK_DIM, kQkRow>(s, k + warp_row * kQkRow, now.q);
    multiply_scores<FL_V_DIM, kVRow>(dp, v + warp_row * kVRow, now.d_out);
    if (halves) {  // the lower half in place of the upper one, and back
      __syncthreads();
      load_d_out<FL_BLOCK_N>(now.d_out, params, backward, backward.d_out_low, keys.b, tile.h, tile.q);
      finish_copies();
      add_scores<FL_V_DIM, kVRow>(dp, v + warp_row * kVRow, now.d_out);
    }
    const KeyPlace place{keys.b, tile.h, {key[0], key[1]}, tile.q + lane % 4 * 2};
    finish_tile(
        s, dp, params, place, tile.partial, [&](int e) { return now.rows[place.column_of(e) - tile.q]; },
        [](int, float, float) {});
    multiply_output<FL_V_CHUNK, kVRow>(d_v, s, now.d_out + v_column, warp_p);
    if (halves) {
      __syncthreads();
      load_d_out<FL_BLOCK_N>(now.d_out, params, backward, backward.d_out, keys.b, tile.h, tile.q);
      finish_copies();
      multiply_output<FL_V_CHUNK, kVRow>(d_v, s, now.d_out + v_column, warp_p);
    }
    multiply_output<FL_D_CHUNK, kQkRow>(d_k, dp, now.q + d_column, warp_p);
    __syncthreads();
    if (kStages == 1 && next.h >= 0) {
      load_queries(stage(0), params, backward, keys.b, next);
      copy_commit();
      copy_wait<0>();
    }
    tile = next;
  }
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
