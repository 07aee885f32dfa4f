// Shared code of the forward kernels for few queries and many keys: the rows and keys of a block, and how the partial
// results of warps, and then of blocks, are combined.
//
// Reading K and V limits their speed, so that each key-value head is read once for all query heads that share it. A
// unit is 16 rows of (query head of the group, query). Each block processes a share of the unit's keys, so that all
// multiprocessors read. Each warp takes 16 keys of every tile. The last block to finish combines the shares.
#pragma once

#include "cuda/kernels/common/epilogue.cuh"
#include "cuda/kernels/common/redo.cuh"
#include "cuda/kernels/sm80/products.cuh"

namespace flashlift::cuda {

constexpr int kRows = 16;
static_assert(FL_BLOCK_M == kRows, "a block has one tile of rows");

// The partial result of a warp or a block for 16 rows: each row has FL_V_DIM sums, its maximum and the sum of its
// exponentials. The padding puts neighbouring rows into different banks.
constexpr int kPartialRow = FL_V_DIM + 8;
constexpr int kPartial = kRows * kPartialRow;
static_assert(kWarps * kPartial * 4 <= kStages * (kKElements + kVElements) * static_cast<int>(sizeof(InputElement)),
              "partial results take the place of keys and values");
static_assert((kPartial + kRows * kMostSplits) * 4 <=
                  kStages * (kKElements + kVElements) * static_cast<int>(sizeof(InputElement)),
              "so do a combined result and the weights of splits");

struct Unit {
  QueryTile tile;
  int kv_head;
  int first_row;  // of group * q_len
};

__device__ __forceinline__ Unit unit_of_block(const ForwardParams& params, int index, int split) {
  const int head = index / params.q_tiles;
  Unit unit;
  unit.tile.b = head / params.kv_heads;
  unit.kv_head = head - unit.tile.b * params.kv_heads;
  unit.first_row = (index - head * params.q_tiles) * kRows;
  const int last = min(unit.first_row + kRows, params.group * params.q_len) - 1;
  const int first_in_group = unit.first_row / params.q_len;
  const int last_in_group = last / params.q_len;
  const bool one_head = first_in_group == last_in_group;
  unit.tile.h = unit.kv_head * params.group + first_in_group;
  unit.tile.last_h = unit.kv_head * params.group + last_in_group;
  unit.tile.row = one_head ? unit.first_row - first_in_group * params.q_len : 0;
  unit.tile.last_row = one_head ? last - last_in_group * params.q_len : params.q_len - 1;
  unit.tile.first_kv_tile = split;
  unit.tile.end_kv_tile = kv_tile_count(params);
  return unit;
}

__device__ __forceinline__ Rows rows_of_thread(const ForwardParams& params, const Unit& unit) {
  Rows rows;
  rows.b = unit.tile.b;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = unit.first_row + threadIdx.x % 32 / 4 + 8 * r;
    const bool inside = row < params.group * params.q_len;
    const int in_group = inside ? row / params.q_len : 0;
    rows.h[r] = unit.kv_head * params.group + in_group;
    rows.q[r] = inside ? row - in_group * params.q_len : params.q_len;
  }
  return rows;
}

// The weight of a part whose own maximum is `part`. Infinite maxima are equal to the whole's, or the weight is 0.
__device__ __forceinline__ float weight_of(float part, float maximum, float factor) {
  return part == maximum ? 1.0f : exponential((part - maximum) * factor);
}

// What a warp has computed: each of a row's four threads has the whole sums.
struct Share {
  float output[FL_V_DIM / 2];
  RowState state;
#if FL_EXACT_SUMS
  float rounded[2];  // sums of the rounded probabilities that the product with values uses: see forward.cu
#endif

  __device__ __forceinline__ void clear() {
    state = RowState();
#if FL_EXACT_SUMS
    rounded[0] = rounded[1] = 0.0f;
#endif
#pragma unroll
    for (int i = 0; i < FL_V_DIM / 2; ++i) {
      output[i] = 0.0f;
    }
  }

#if FL_EXACT_SUMS
  // A tile's probabilities; earlier sums are multiplied by alpha.
  template <int kCount>
  __device__ __forceinline__ void sum_rounded(const float (&p)[kCount], const float (&alpha)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rounded[r] *= alpha[r];
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) {
        const u32 pair = pack_half(p[4 * j + 2 * r], p[4 * j + 2 * r + 1]);
        rounded[r] += to_float(static_cast<unsigned short>(pair)) + to_float(static_cast<unsigned short>(pair >> 16));
      }
    }
  }

  // Makes the output's weights add up to the sums. All four threads of a row have the whole sum.
  __device__ __forceinline__ void correct_weights() {
    float ratio[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float weights = quad_sum(rounded[r]);
      ratio[r] = weights > 0.0f ? state.sum[r] / weights : 1.0f;
    }
    rescale_rows(output, ratio);
  }
#endif

  // The first `rows` rows.
  __device__ __forceinline__ void store(float* partial, int rows) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (lane / 4 + 8 * r >= rows) {
        continue;
      }
      float* row = partial + (lane / 4 + 8 * r) * kPartialRow;
#pragma unroll
      for (int j = 0; j < FL_V_DIM / 8; ++j) {
        *reinterpret_cast<float2*>(row + 8 * j + lane % 4 * 2) =
            make_float2(output[4 * j + 2 * r], output[4 * j + 2 * r + 1]);
      }
      if (lane % 4 == 0) {
        *reinterpret_cast<float2*>(row + FL_V_DIM) = make_float2(state.maximum[r], state.sum[r]);
      }
    }
  }

  __device__ __forceinline__ void merge(const float* partial, int rows, float factor) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (lane / 4 + 8 * r >= rows) {
        continue;
      }
      const float* row = partial + (lane / 4 + 8 * r) * kPartialRow;
      const float2 other = *reinterpret_cast<const float2*>(row + FL_V_DIM);
      const float maximum = fmaxf(state.maximum[r], other.x);
      const float ours = weight_of(state.maximum[r], maximum, factor);
      const float theirs = weight_of(other.x, maximum, factor);
      state.maximum[r] = maximum;
      state.sum[r] = state.sum[r] * ours + other.y * theirs;
#pragma unroll
      for (int j = 0; j < FL_V_DIM / 8; ++j) {
        const float2 x = *reinterpret_cast<const float2*>(row + 8 * j + lane % 4 * 2);
        output[4 * j + 2 * r] = output[4 * j + 2 * r] * ours + x.x * theirs;
        output[4 * j + 2 * r + 1] = output[4 * j + 2 * r + 1] * ours + x.y * theirs;
      }
    }
  }

};

// Combines the partial results of a unit's splits into one in shared memory. The latency of loads is the cost, so that as
// many as possible are under way: a warp loads the states of a row's splits at once, one a lane, and then each thread the
// same columns of several splits.
__device__ __forceinline__ void gather_splits(float* memory, const float* partials, int splits, int rows, float factor) {
  // (Loads bypass the L1 cache, which does not see other blocks' writes.)
  constexpr int kStates = kMostSplits / 32;  // of a lane
  float* const weights = memory + kPartial;  // [rows][kMostSplits]
#pragma unroll 1
  for (int row = threadIdx.x / 32; row < rows; row += kWarps) {
    float2 states[kStates];
    float maximum = -FL_INFINITY;
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      const int split = threadIdx.x % 32 + 32 * i;
      const float* const state = partials + split * kPartial + row * kPartialRow + FL_V_DIM;
      states[i] = split < splits ? __ldcg(reinterpret_cast<const float2*>(state)) : make_float2(-FL_INFINITY, 0.0f);
    }
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      maximum = fmaxf(maximum, states[i].x);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffff, maximum, step));
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      const float weight = weight_of(states[i].x, maximum, factor);
      weights[row * kMostSplits + threadIdx.x % 32 + 32 * i] = weight;
      sum = fmaf(states[i].y, weight, sum);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      sum += __shfl_xor_sync(0xffffffff, sum, step);
    }
    if (threadIdx.x % 32 == 0) {
      *reinterpret_cast<float2*>(memory + row * kPartialRow + FL_V_DIM) = make_float2(maximum, sum);
    }
  }
  __syncthreads();
  constexpr int kColumns = FL_V_DIM / 4;
  constexpr int kTogether = 8;
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * kColumns; i += kThreads) {
    const int row = i / kColumns;
    const int column = i % kColumns * 4;
    float4 output = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int first = 0; first < splits; first += kTogether) {
      float4 x[kTogether];
#pragma unroll
      for (int s = 0; s < kTogether; ++s) {
        const float* const sums = partials + (first + s) * kPartial + row * kPartialRow + column;
        x[s] = first + s < splits ? __ldcg(reinterpret_cast<const float4*>(sums)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
#pragma unroll
      for (int s = 0; s < kTogether; ++s) {
        const float weight = weights[row * kMostSplits + first + s];
        output.x = fmaf(x[s].x, weight, output.x);
        output.y = fmaf(x[s].y, weight, output.y);
        output.z = fmaf(x[s].z, weight, output.z);
        output.w = fmaf(x[s].w, weight, output.w);
      }
    }
    *reinterpret_cast<float4*>(memory + row * kPartialRow + column) = output;
  }
}

// Collects the results of all warps in warp 0. `memory` is shared and free after a barrier.
__device__ __forceinline__ void merge_warps(Share& share, float* memory, int rows, float factor) {
  const int warp = threadIdx.x / 32;
  __syncthreads();
  if (warp > 0) {
    share.store(memory + warp * kPartial, rows);
  }
  __syncthreads();
  if (warp == 0) {
#pragma unroll 1
    for (int other = 1; other < kWarps; ++other) {
      share.merge(memory + other * kPartial, rows, factor);
    }
  }
}

// Combines the results of warps and blocks, and writes them. `memory` is shared; keys and values are no longer needed.
__device__ __forceinline__ void finish_unit(Share& share, float* memory, const ForwardParams& params, const Unit& unit,
                                            const Rows& rows, int index, int split) {
  const float factor = score_factor(params);
  const int warp = threadIdx.x / 32;
  const int row_count = min(kRows, params.group * params.q_len - unit.first_row);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    share.state.sum[r] = quad_sum(share.state.sum[r]);
  }
#if FL_EXACT_SUMS
  share.correct_weights();
#endif
  merge_warps(share, memory, row_count, factor);
  if (params.splits > 1) {
    float* const partials = params.partials + static_cast<i64>(index) * params.splits * kPartial;
    __shared__ int finished;
    if (warp == 0) {
      share.store(partials + split * kPartial, row_count);
      __threadfence();
      __syncwarp();
      if (threadIdx.x == 0) {
        finished = atomicAdd(params.counters + index, 1);
      }
    }
    __syncthreads();
    if (finished + 1 < params.splits) {
      return;
    }
    __threadfence();
    gather_splits(memory, partials, params.splits, row_count, factor);
    __syncthreads();
    share.clear();
    if (warp == 0) {
      share.merge(memory, row_count, factor);
    }
    if (threadIdx.x == 0) {
      params.counters[index] = 0;  // for the next launch
    }
  }
  if (warp == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      share.state.sum[r] = threadIdx.x % 4 == 0 ? share.state.sum[r] : 0.0f;
    }
    write_output(share.output, share.state, params, rows);
  }
}

}  // namespace flashlift::cuda
