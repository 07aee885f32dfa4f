// The portable forward kernel for 16-bit inputs: any GPU from sm_80 on, any strides. One block per query tile. A warp
// has FL_FRAGMENTS times 16 rows, and multiplies each matrix of keys or values that it loads from shared memory by all
// of them. With 16 rows per warp, these loads, not the products, limit the speed.
//
// A tile's values are loaded while its scores are computed, and the next keys during the softmax and the product with
// values. The other blocks of the multiprocessor hide the remaining latency; there are too few registers for more
// stages.
#include "bounds.cuh"
#include "cuda/kernels/common/epilogue.cuh"
#include "cuda/kernels/common/redo.cuh"
#include "cuda/kernels/common/scheduler.cuh"
#include "cuda/kernels/sm80/block_visits.cuh"
#include "cuda/kernels/sm80/panels.cuh"

namespace flashlift::cuda {

constexpr int kFragments = FL_FRAGMENTS;
constexpr int kWarpRows = 16 * kFragments;
constexpr int kThreads = 32 * FL_BLOCK_M / kWarpRows;
using QTile = PanelTile<FL_BLOCK_M, FL_QK_DIM>;
using KTile = PanelTile<FL_BLOCK_N, FL_QK_DIM>;
using VTile = PanelTile<FL_BLOCK_N, FL_V_DIM>;
constexpr int kFirstRowsBytes = 16;  // where the head's keys and values begin: no registers are left for it in the loop
static_assert(QTile::kBytes + KTile::kBytes + VTile::kBytes + BlockVisits::kBytes + kFirstRowsBytes <= FL_SHARED_BYTES,
              "the host reserves less shared memory than the kernel uses");

using Scores = float[kFragments][FL_BLOCK_N / 2];
using Output = float[kFragments][FL_V_DIM / 2];

// Q's matrices of one step of 16 columns.
using QStep = u32[kFragments][4];

__device__ __forceinline__ void load_q_step(QStep& a, const QTile::Lane& q, int step) {
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    load_matrices(a[f], QTile::address(q, 16 * f, 16 * step));
  }
}

// The pair's 16 columns of the sums, from 16 columns of A and as many rows of B.
template <int kCount>
__device__ __forceinline__ void multiply_pair(float (&sums)[kFragments][kCount], const u32 (&a)[kFragments][4],
                                              const u32 (&b)[4], int pair) {
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    multiply_add(sums[f] + 8 * pair, a[f], b[0], b[1]);
    multiply_add(sums[f] + 8 * pair + 4, a[f], b[2], b[3]);
  }
}

// Loads matrices one step ahead of the products that use them.
__device__ __forceinline__ void multiply_scores(Scores& s, u32 q_tile, u32 k_tile) {
  const u32 thread = opaque(threadIdx.x);
  const u32 lane = thread % 32;
  // A: rows 0-7, rows 8-15, then the same eight columns on. B: keys 0-7, their next columns, keys 8-15, likewise.
  const QTile::Lane q = QTile::lane(q_tile, thread / 32 * kWarpRows + lane % 16, lane / 16);
  const KTile::Lane k = KTile::lane(k_tile, lane / 16 * 8 + lane % 8, lane / 8 % 2);
  constexpr int kSteps = FL_QK_DIM / 16;
  constexpr int kPairs = FL_BLOCK_N / 16;
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int i = 0; i < FL_BLOCK_N / 2; ++i) {
      s[f][i] = 0.0f;
    }
  }
  QStep a[2];
  load_q_step(a[0], q, 0);
  u32 b[2][4];
  load_matrices(b[0], KTile::address(k, 0, 0));
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int i = step * kPairs + pair;
      if (i + 1 < kSteps * kPairs) {
        load_matrices(b[(i + 1) % 2], KTile::address(k, (i + 1) % kPairs * 16, (i + 1) / kPairs * 16));
      }
      if (pair == 0 && step + 1 < kSteps) {
        load_q_step(a[(step + 1) % 2], q, step + 1);
      }
      multiply_pair(s, a[step % 2], b[i % 2], pair);
    }
  }
}

// A running maximum that lags (ForwardConfig::maximum_lag) leaves a row's largest probability to be rounded for the
// product. The output is then divided by sums that have each thread's largest probability rounded, too, so that a row
// with nearly all probability at one key is as exact as without a lag.
#define FL_ROUNDS_LARGEST (FL_MAXIMUM_LAG > 0 && !FL_EXACT_SUMS)
// Whether the output is divided by other sums than lse has.
#define FL_TWO_SUMS (FL_EXACT_SUMS || (FL_ROUNDS_LARGEST && FL_WANT_LSE))

__device__ __forceinline__ const InputElement* load_shared_pointer(u32 address) {
  const InputElement* x;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(x) : "r"(address) : "memory");
  return x;
}

struct WarpRows {
  RowState of[kFragments];
  bool large = true;  // as RowState::large, for all rows
#if FL_EXACT_SUMS
  // Sums of the probabilities as the product with values has them, rounded: one more product, with ones. The backward
  // pass takes <d_out, out> from an output that is not rounded: weights of values that do not add up to 1 would be an
  // error in it that all keys of the row share, and that does not become small where all values are alike and d_s is.
  float rounded[kFragments][4] = {};
#elif FL_TWO_SUMS
  float rounding[kFragments][2] = {};  // what rounding adds to the sums of this thread's columns
#endif
};

__device__ __forceinline__ void multiply_values(Output& output, WarpRows& rows, const Scores& p, u32 v_tile) {
  const u32 lane = opaque(threadIdx.x) % 32;
  const VTile::Lane v = VTile::lane(v_tile, lane % 16, lane / 16);
  constexpr int kSteps = FL_BLOCK_N / 16;
  constexpr int kPairs = FL_V_DIM / 16;
  u32 b[2][4];
  load_matrices_transposed(b[0], VTile::address(v, 0, 0));
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    u32 a[kFragments][4];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a[f][j] = pack_half(p[f][8 * step + 2 * j], p[f][8 * step + 2 * j + 1]);
      }
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const int i = step * kPairs + pair;
      if (i + 1 < kSteps * kPairs) {
        load_matrices_transposed(b[(i + 1) % 2], VTile::address(v, (i + 1) / kPairs * 16, (i + 1) % kPairs * 16));
      }
      multiply_pair(output, a, b[i % 2], pair);
#if FL_EXACT_SUMS
      if (pair == kPairs / 2) {  // among the other products: a sum does not wait for the last step's
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          multiply_add(rows.rounded[f], a[f], pack_half(1.0f, 1.0f), pack_half(1.0f, 1.0f));
        }
      }
#endif
    }
  }
}

using RowValues = float[kFragments][2];

// Updates the maxima, and rescales sums and output to match. Most tiles change none of a warp's maxima: one vote shows
// that. Returns the thread's largest scores.
__device__ __forceinline__ void update_maxima(const Scores& s, RowValues& largest, WarpRows& rows, Output& output,
                                              float factor) {
  bool any_grows = false;
  const auto grows = [&](int f, int r, float maximum) {
    return (maximum - rows.of[f].maximum[r]) * factor > kRescaleThreshold;
  };
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[f][r] = fmaxf(s[f][2 * r], s[f][2 * r + 1]);
#pragma unroll
      for (int j = 1; j < FL_BLOCK_N / 8; ++j) {
        largest[f][r] = fmaxf(largest[f][r], fmaxf(s[f][4 * j + 2 * r], s[f][4 * j + 2 * r + 1]));
      }
      any_grows |= grows(f, r, largest[f][r]);
    }
  }
  if (!__any_sync(0xffffffff, any_grows)) {
    return;
  }
  bool large = false;
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    float alpha[2] = {1.0f, 1.0f};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      RowState& state = rows.of[f];
      const float maximum = quad_max(largest[f][r]);
      if (grows(f, r, maximum)) {
        alpha[r] = exponential((state.maximum[r] - maximum) * factor);
        state.maximum[r] = maximum;
        state.sum[r] *= alpha[r];
      }
      large |= subtracts_first(state.maximum[r] * factor);
    }
    rescale_rows(output[f], alpha);
#if FL_EXACT_SUMS
    rescale_rows(rows.rounded[f], alpha);
#elif FL_TWO_SUMS
    rows.rounding[f][0] *= alpha[0];
    rows.rounding[f][1] *= alpha[1];
#endif
  }
  rows.large = __any_sync(0xffffffff, large);
}

// Replaces scores by p = exponential(factor * (s - maximum)) and updates the sums. largest: of the thread's scores.
__device__ __forceinline__ void take_exponentials(Scores& s, const RowValues& largest, WarpRows& rows, float factor) {
  if (rows.large) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      subtract_maximum(s[f], rows.of[f].maximum);
    }
  }
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#if FL_ROUNDS_LARGEST
    float rounding[2];
    float p[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float maximum = rows.of[f].maximum[r];
      const float x = rows.large ? below_maximum(largest[f][r], fabsf(maximum) < FL_INFINITY ? maximum : 0.0f)
                                 : largest[f][r];
      p[r] = exponential(fmaf(x, factor, rows.large ? 0.0f : -maximum * factor));
    }
    unpack_half(pack_half(p[0], p[1]), rounding[0], rounding[1]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rounding[r] -= p[r];
    }
#endif
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float offset = rows.large ? 0.0f : -rows.of[f].maximum[r] * factor;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < FL_BLOCK_N / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[f][4 * j + 2 * r + c];
          x = exponential(fmaf(x, factor, offset));
          sum += x;
        }
      }
#if FL_ROUNDS_LARGEST && FL_TWO_SUMS
      rows.rounding[f][r] += rounding[r];
#elif FL_ROUNDS_LARGEST
      sum += rounding[r];
#endif
      rows.of[f].sum[r] += sum;
    }
  }
}

// redo_tiles() as a function: inlined among the kernel's registers, it takes a quarter of the compile time.
__device__ __noinline__ void redo_fragment(float (&sums)[FL_V_DIM / 2], const float (&maximum)[2],
                                           const ForwardParams& params, const QueryTile& tile, const Rows& rows) {
  redo_tiles<FL_BLOCK_N>(sums, maximum, params, tile, rows, 0);
}

// redo_nonfinite() for all fragments, from and to local memory: no accumulators are in registers around the call.
template <typename RowsOf>
__device__ __forceinline__ void redo_fragments(Output& output, const WarpRows& state, const ForwardParams& params,
                                               const QueryTile& tile, const RowsOf& rows_of) {
#if FL_REDO_ALL || FL_HAS_MASK_MOD
  u32 fragments = 0;
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    fragments |= static_cast<u32>(warp_has_nonfinite(output[f])) << f;
  }
  if (fragments == 0) {
    return;
  }
  Output sums;
  float maximum[kFragments][2];
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    copy_sums(sums[f], output[f]);
    maximum[f][0] = state.of[f].maximum[0];
    maximum[f][1] = state.of[f].maximum[1];
  }
#pragma unroll 1
  for (; fragments != 0; fragments &= fragments - 1) {
    const int f = __ffs(fragments) - 1;
    redo_fragment(sums[f], maximum[f], params, tile, rows_of(f));
  }
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    copy_sums(output[f], sums[f]);
  }
#endif
}

extern "C" __global__ void __launch_bounds__(kThreads, FL_BLOCKS)
    flashlift_forward(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const u32 q_tile = shared_address(shared_memory);
  const u32 k_tile = q_tile + QTile::kBytes;
  const u32 v_tile = k_tile + KTile::kBytes;
  const u32 first_rows = v_tile + VTile::kBytes + BlockVisits::kBytes;

  const QueryTile tile = query_tile(params, blockIdx.x);
  const float factor = score_factor(params);
  const auto rows_of = [&](int f) {
    const int thread = opaque(threadIdx.x);
    const int row = tile.row + thread / 32 * kWarpRows + 16 * f + thread % 32 / 4;
    return Rows{tile.b, {tile.h, tile.h}, {row, row + 8}};
  };
  const int kv_head = tile.h / params.group;
  const HeadRows keys = {params.k, params.k_strides, FL_HEAD_DIM, params.vector_k != 0, tile.b, kv_head};
  const HeadRows values = {params.v, params.v_strides, FL_VALUE_DIM, params.vector_v != 0, tile.b, kv_head};
  const InputElement* const first_key = keys.first(params);
  if (threadIdx.x == 0) {
    asm volatile("st.shared.v2.u64 [%0], {%1, %2};" ::"r"(first_rows), "l"(first_key), "l"(values.first(params))
                 : "memory");
  }
  const auto load_k = [&](int kv_tile, const InputElement* first) {
    copy_keys<kThreads, FL_BLOCK_N, FL_QK_DIM>(k_tile, keys, first, params, kv_tile * FL_BLOCK_N);
  };
  const auto load_v = [&](int kv_tile, const InputElement* first) {
    copy_keys<kThreads, FL_BLOCK_N, FL_V_DIM>(v_tile, values, first, params, kv_tile * FL_BLOCK_N);
  };
  WarpRows state;
  Output output;
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int i = 0; i < FL_V_DIM / 2; ++i) {
      output[f][i] = 0.0f;
    }
  }

  const TileRows q_rows = {query_row(params, tile.b, tile.h, tile.row), params.q_strides.row, params.q_strides.column,
                           params.q_len - tile.row, FL_HEAD_DIM, params.vector_q != 0};
  copy_tile<kThreads, FL_BLOCK_M, FL_QK_DIM>(q_tile, q_rows);
  BlockVisits found(params, tile, shared_memory + QTile::kBytes + KTile::kBytes + VTile::kBytes);
  int kv_tile = found.first_tile();
  bool zeros = found.first_adds_zeros();
  const int visits = found.count();
  if (visits > 0) {
    load_k(kv_tile, first_key);
  }
  copy_commit();
#pragma unroll 1
  for (int i = 0; i < visits; ++i) {
    copy_wait<0>();
    __syncthreads();  // this tile's keys have arrived, and all warps are done with the last tile's values
    load_v(kv_tile, load_shared_pointer(first_rows + 8));
    copy_commit();
    if (i + 1 < visits) {
      found.advance(params, tile);
    }

    Scores scores;
    multiply_scores(scores, q_tile, k_tile);
    const int kv = kv_tile * FL_BLOCK_N + opaque(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      apply_score_mod(scores[f], params, rows_of(f), kv, zeros);
    }
    if (i < found.partial()) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        apply_masks(scores[f], params, rows_of(f), kv);
      }
    }
    copy_wait<0>();
    __syncthreads();  // this tile's values have arrived, and all warps are done with its keys
    if (i + 1 < visits) {
      kv_tile = found.tile_after(kv_tile);
      zeros = found.adds_zeros();
      load_k(kv_tile, load_shared_pointer(first_rows));
    }
    copy_commit();
    RowValues largest;
    update_maxima(scores, largest, state, output, factor);
    take_exponentials(scores, largest, state, factor);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      drop_out(scores[f], params, rows_of(f), kv);
    }
    multiply_values(output, state, scores, v_tile);
    if (i + 1 == (FL_REDO_ALL ? visits : found.partial())) {
      redo_fragments(output, state, params, tile, rows_of);
    }
  }
  copy_wait<0>();  // for a block that visits no tile
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#if FL_TWO_SUMS
    float ratio[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = quad_sum(state.of[f].sum[r]);  // called by all threads of the warp, also for empty rows
#if FL_EXACT_SUMS
      const float rounded = state.rounded[f][2 * r];
#else
      const float rounded = sum + quad_sum(state.rounding[f][r]);
#endif
      ratio[r] = rounded > 0.0f ? sum / rounded : 1.0f;
    }
    rescale_rows(output[f], ratio);
#endif
    write_output(output[f], state.of[f], params, rows_of(f));
  }
}

}  // namespace flashlift::cuda
