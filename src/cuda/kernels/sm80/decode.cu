// The forward kernel for few queries and many keys: for any GPU from sm_80 on, any strides, and also f32.
#include "bounds.cuh"
#include "cuda/kernels/sm80/decode.cuh"

namespace flashlift::cuda {

// This block's share of a unit's keys.
struct Worker {
  const ForwardParams& params;
  const Unit& unit;
  const Rows& rows;
  const float factor;
  InputElement* const q;
  InputElement* const k;
  InputElement* const v;
  float* const shared_p;

  __device__ __forceinline__ void load(int i, int kv_tile) {
    const int stage = i % kStages;
    load_keys(k + stage * kKElements, v + stage * kVElements, params, unit.tile.b, unit.kv_head, kv_tile);
  }

  __device__ __forceinline__ void multiply(Share& share, int stage, int kv_tile, bool partial) {
    const int warp_key = threadIdx.x / 32 * kWarpKeys;
    const int kv = kv_tile * FL_BLOCK_N + warp_key + threadIdx.x % 4 * 2;
    float scores[kWarpKeys / 2];
    multiply_scores<FL_QK_DIM, kQkRow>(scores, q, k + stage * kKElements + warp_key * kQkRow);
    apply_score_mod(scores, params, rows, kv);
    if (partial) {
      apply_masks(scores, params, rows, kv);
    }
    const TileSoftmax softmax = update_maxima(scores, share.state, factor);
    take_exponentials(scores, share.state, factor, softmax);
#if FL_EXACT_SUMS
    share.sum_rounded(scores, softmax.alpha);
#endif
    if (softmax.rescale) {
      rescale_rows(share.output, softmax.alpha);
    }
    drop_out(scores, params, rows, kv);
    multiply_output<FL_V_DIM, kVRow>(share.output, scores, v + stage * kVElements + warp_key * kVRow,
                    shared_p + threadIdx.x / 32 * kRows * kPRow);
  }

  __device__ __forceinline__ void run(Share& share) {
    const Visits found = find_visits(params, unit.tile);
    const int visits = found.partial + found.full;
    VisitIterator iterator(params, unit.tile, found);
    const auto q_row = [&](int row) {
      const int in_group = row / params.q_len;
      return query_row(params, unit.tile.b, unit.kv_head * params.group + in_group, row - in_group * params.q_len);
    };
    load_tile<kRows, FL_QK_DIM, kQkRow>(q, q_row, params.q_strides.column, unit.first_row, params.group * params.q_len,
                                        FL_HEAD_DIM, params.vector_q);
    int tiles[kStages];  // tiles whose copies are under way, the next one first
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      if (i < visits) {
        tiles[i] = iterator.next();
        load(i, tiles[i]);
      }
      copy_commit();
    }
#pragma unroll 1
    for (int i = 0; i < visits; ++i) {
      copy_wait<kStages - 2>();
      __syncthreads();  // all copies of tile i have arrived, and all warps are done with tile i - 1
      if (i + kStages - 1 < visits) {
        tiles[kStages - 1] = iterator.next();
        load(i + kStages - 1, tiles[kStages - 1]);
      }
      copy_commit();
      multiply(share, i % kStages, tiles[0], i < found.partial);
      if (i + 1 == (FL_REDO_ALL ? visits : found.partial)) {
        redo_nonfinite<kWarpKeys>(share.output, share.state.maximum, params, unit.tile, rows, threadIdx.x / 32 * kWarpKeys);
      }
#pragma unroll
      for (int s = 0; s + 1 < kStages; ++s) {
        tiles[s] = tiles[s + 1];
      }
    }
    copy_wait<0>();
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    flashlift_forward(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  InputElement* const q = reinterpret_cast<InputElement*>(shared_memory);
  InputElement* const k = q + kQElements;
  InputElement* const v = k + kStages * kKElements;
  float* const memory = reinterpret_cast<float*>(k);  // after the last use of keys and values

  const int index = blockIdx.x / params.splits;
  const int split = blockIdx.x - index * params.splits;
  const Unit unit = unit_of_block(params, index, split);
  const Rows rows = rows_of_thread(params, unit);

  Share share;
  share.clear();
  Worker{params, unit, rows, score_factor(params), q, k, v, reinterpret_cast<float*>(v + kStages * kVElements)}.run(share);
  finish_unit(share, memory, params, unit, rows, index, split);
}

}  // namespace flashlift::cuda
