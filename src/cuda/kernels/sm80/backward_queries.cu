// The portable backward kernels for queries, with 16 rows per warp: the softmax statistics of each row, d_q, and the
// gradients of captured tensors.
#include "cuda/kernels/sm80/backward_tiles.cuh"

namespace flashlift::cuda {
namespace {

using QueryPlace = Place<false>;
using TileValues = float[FL_BLOCK_N / 2];  // a thread's

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

// ---- Rows ----

// Of a thread's columns, relative to the row's maximum so far.
struct RowSums {
  float maximum[2] = {-FL_INFINITY, -FL_INFINITY};
  float sum[2] = {0.0f, 0.0f};
  float weighted[2] = {0.0f, 0.0f};  // sum of p * d_p
};

template <int kCount>
__device__ __forceinline__ void sum_tile(float (&s)[kCount], const float (&dp)[kCount], RowSums& sums,
                                         const ForwardParams& params, const QueryPlace& place, bool partial) {
  const u32 kept = kept_bits<kCount>(params, place, partial);
  const u32 undropped = undropped_bits<kCount>(params, place);
  float largest[2] = {sums.maximum[0], sums.maximum[1]};
#if FL_GRADIENT_SEARCHES
#pragma unroll 1
#else
#pragma unroll
#endif
  for (int i = 0; i < kCount; ++i) {
    float derivative;
    const float score = score_at(s[i], params, place, i, derivative);
    s[i] = kept >> i & 1 ? score : -FL_INFINITY;
    largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], s[i]);
  }
  float base[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float maximum = quad_max(largest[r]);
    base[r] = maximum == -FL_INFINITY ? 0.0f : maximum;
    const float alpha = exponential((sums.maximum[r] - base[r]) * kExponentUnit);
    const bool first = sums.maximum[r] == -FL_INFINITY;  // then there is nothing to scale but zeros and NaN
    sums.sum[r] *= first ? 1.0f : alpha;
    sums.weighted[r] *= first ? 1.0f : alpha;
    sums.maximum[r] = maximum;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int r = i / 2 % 2;
    const float p = exponential(below_maximum(s[i], base[r]) * kExponentUnit);
    sums.sum[r] += p;
    // A masked key takes no part, whatever its value.
    sums.weighted[r] += p != 0.0f && (undropped >> i & 1) != 0 ? p * (dp[i] * params.dropout_factor) : 0.0f;
  }
}

// What follows from the sums over all columns.
__device__ __forceinline__ RowGradient row_gradient(const ForwardParams& params, float keys_maximum, float sum,
                                                    float weighted, float d_lse, int h) {
  bool nan = sum != sum;
  float maximum = keys_maximum;
#if FL_HAS_SINKS
  for (int i = 0; i < params.sinks_per_head; ++i) {
    const float sink = sink_at(params, h, i);
    nan |= sink != sink;
    maximum = fmaxf(maximum, sink);
  }
#endif
  if (nan || maximum == FL_INFINITY) {
    return {0.0f, FL_NAN, FL_NAN, 0};
  }
  if (maximum == -FL_INFINITY) {
    return {0.0f, 0.0f, 0.0f, 1};
  }
#if FL_HAS_SINKS
  const float scale = exponential((keys_maximum - maximum) * kExponentUnit);
  sum *= scale;
  weighted *= scale;
  for (int i = 0; i < params.sinks_per_head; ++i) {
    sum += exponential((sink_at(params, h, i) - maximum) * kExponentUnit);
  }
#endif
  return {maximum, 1.0f / sum, weighted / sum - d_lse, 0};
}

}  // namespace

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
  // Not from lse and <d_out, out>, even of an f32 output: what rounding does to <d_out, v> cancels in d_p - delta only
  // where delta is a sum of the same products. A row of one key shows it, and so does one whose probabilities are
  // nearly those of one key.
  RowSums sums;
  for_each_tile(params, backward, tile, found, shared,
                [&](TileValues& s, TileValues& dp, int kv, bool partial, InputElement*) {
                  sum_tile(s, dp, sums, params, place_of(tile, kv), partial);
                });
  RowGradient rows[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float d_lse = d_lse_at(backward, tile.b, tile.h, min(rows_place.rows[r], params.q_len - 1));
    rows[r] = row_gradient(params, sums.maximum[r], quad_sum(sums.sum[r]), quad_sum(sums.weighted[r]), d_lse, tile.h);
  }
  RowGradient* const head = row_gradients(params, backward, tile.b, tile.h);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (threadIdx.x % 4 == 0 && rows_place.rows[r] < params.q_len) {
      head[rows_place.rows[r]] = rows[r];
    }
  }
}

// ---- d_q and captured tensors ----

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
  const RowGradient* const head = row_gradients(params, backward, tile.b, tile.h);
  RowGradient rows[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows[r] = rows_place.rows[r] < params.q_len ? head[rows_place.rows[r]] : RowGradient{0.0f, 0.0f, 0.0f, 1};
  }
  const Visits found = find_visits(params, tile);
  float* const warp_p = shared.p + threadIdx.x / 32 * 16 * kPRow;
  float d_q[FL_QK_DIM / 2];
#if FL_CAPTURE_GRADIENTS
  GradientSums captured{};
#endif
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
          [&](int i, float ds, float product) {
#if FL_CAPTURE_GRADIENTS
            if (!careful) {
              const int q = place.q(i);
              add_captured(ds, product, gradient_row(place.b, place.h, q, params),
                           gradient_column(place.b, place.kv(i), params), place.b, place.h, q, place.kv(i), 0, params,
                           backward.gradients, captured, i / 2 % 2);
            }
#endif
          });
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
#if FL_CAPTURE_GRADIENTS
    add_captured_rows(captured, r, tile.b, tile.h, min(q, params.q_len - 1), q < params.q_len, params,
                      backward.gradients);
#endif
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
