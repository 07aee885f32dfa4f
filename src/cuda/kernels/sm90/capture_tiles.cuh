// Shared code of the Hopper kernels for gradients of captured tensors.
#pragma once

#include "cuda/kernels/common/gradients.cuh"
#include "cuda/kernels/sm90/backward_pipeline.cuh"
#include "wgmma.cuh"

namespace flashlift::cuda {

using TileValues = float[FL_BLOCK_N / 2];  // a thread's
using TilePlace = Place<kRowsAreKeys>;

// After the barriers have been initialised by the block's first thread.
__device__ __forceinline__ void begin(const ForwardParams& params, const TensorMap& d_out_map) {
  if (threadIdx.x == 0) {
    prefetch_map(params.q_map);
    prefetch_map(params.k_map);
    prefetch_map(params.v_map);
    prefetch_map(d_out_map);
  }
  __syncthreads();
}

}  // namespace flashlift::cuda
