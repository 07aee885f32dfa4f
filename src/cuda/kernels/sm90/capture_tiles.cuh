// Shared code of the Hopper kernels for gradients of captured tensors.
#pragma once

#include "cuda/kernels/common/gradients.cuh"
#include "cuda/kernels/sm90/backward_pipeline.cuh"
#include "wgmma.cuh"

namespace flashlift::cuda {

using TileValues = float[FL_BLOCK_N / 2];  // a thread's
using TilePlace = Place<kRowsAreKeys>;

}  // namespace flashlift::cuda
