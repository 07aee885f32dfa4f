// The portable forward kernel for f32 inputs: any GPU from sm_80 on, any strides. One block a query tile, 16 rows a warp,
// keys and values double-buffered by asynchronous copies.
#include "bounds.cuh"
#include "cuda/kernels/common/epilogue.cuh"
#include "cuda/kernels/common/redo.cuh"
#include "cuda/kernels/common/scheduler.cuh"
#include "cuda/kernels/sm80/products.cuh"

namespace flashlift::cuda {

extern "C" __global__ void __launch_bounds__(kThreads)
    flashlift_forward(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  InputElement* const q = reinterpret_cast<InputElement*>(shared_memory);
  InputElement* const k = q + kQElements;
  InputElement* const v = k + kStages * kKElements;
  float* const shared_p = reinterpret_cast<float*>(v + kStages * kVElements);

  const QueryTile tile = query_tile(params, blockIdx.x);
  const float factor = score_factor(params);
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * 16;
  const int row = tile.row + warp_row + lane / 4;
  const Rows rows{tile.b, {tile.h, tile.h}, {row, row + 8}};

  RowState state;
  float output[FL_V_DIM / 2];
#pragma unroll
  for (int i = 0; i < FL_V_DIM / 2; ++i) {
    output[i] = 0.0f;
  }

  // Every warp finds the same tiles, so all threads meet at the same barriers.
  const Visits found = find_visits(params, tile);
  VisitIterator iterator(params, tile, found);
  const int visits = found.partial + found.full;
  int kv_tile = 0;
  bool zeros = false;
  if (visits > 0) {
    const auto q_row = [&](int row) { return query_row(params, tile.b, tile.h, row); };
    load_tile<FL_BLOCK_M, FL_QK_DIM, kQkRow>(q, q_row, params.q_strides.column, tile.row, params.q_len, FL_HEAD_DIM,
                                             params.vector_q);
    kv_tile = iterator.next();
    zeros = iterator.adds_zeros();
    load_keys(k, v, params, tile.b, tile.h / params.group, kv_tile);
  }
  copy_commit();
#pragma unroll 1
  for (int i = 0; i < visits; ++i) {
    const int stage = i % kStages;
    int next_tile = 0;
    if (kStages > 1 && i + 1 < visits) {
      next_tile = iterator.next();
      const int next_stage = (i + 1) % kStages;
      load_keys(k + next_stage * kKElements, v + next_stage * kVElements, params, tile.b, tile.h / params.group,
                next_tile);
    }
    copy_commit();
    copy_wait<1>();
    __syncthreads();

    float scores[FL_BLOCK_N / 2];
    multiply_scores<FL_QK_DIM, kQkRow>(scores, q + warp_row * kQkRow, k + stage * kKElements);
    const int kv = kv_tile * FL_BLOCK_N + lane % 4 * 2;
    apply_score_mod(scores, params, rows, kv, zeros);
    if (i < found.partial) {
      apply_masks(scores, params, rows, kv);
    }
    const TileSoftmax softmax = update_maxima(scores, state, factor);
    take_exponentials(scores, state, factor, softmax);
    if (softmax.rescale) {
      rescale_rows(output, softmax.alpha);
    }
    drop_out(scores, params, rows, kv);
    multiply_output<FL_V_DIM, kVRow>(output, scores, v + stage * kVElements, shared_p + warp_row * kPRow);
    __syncthreads();
    if (kStages == 1 && i + 1 < visits) {
      next_tile = iterator.next();
      load_keys(k, v, params, tile.b, tile.h / params.group, next_tile);
      copy_commit();
      copy_wait<0>();
    }
    kv_tile = next_tile;
    zeros = iterator.adds_zeros();
    if (i + 1 == (FL_REDO_ALL ? visits : found.partial)) {
      redo_nonfinite<FL_BLOCK_N>(output, state.maximum, params, tile, rows, 0);
    }
  }
  write_output(output, state, params, rows);
}

}  // namespace flashlift::cuda
