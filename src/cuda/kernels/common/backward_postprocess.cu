// The postprocess of the backward pass, for all main kernels: the gradients of sinks, and those of captured tensors in
// the type and layout of the caller's tensors.
#include "cuda/kernels/common/exact_sum.cuh"
#include "cuda/kernels/common/rows.cuh"

namespace flashlift::cuda {

#if FL_HAS_SINKS
namespace {

// The contribution of a sink with this value to the row's gradient.
#if FL_ROW_TILES
__device__ __forceinline__ float sink_share(float value, const RowTiles& tiles, int head, int q) {
  const float* const tile =
      tiles.statistics + (static_cast<long long>(head) * tiles.tiles + q / tiles.rows) * 2 * tiles.rows;
  return exponential(value * kExponentUnit - tile[q % tiles.rows]) * tile[tiles.rows + q % tiles.rows];
}
#else
__device__ __forceinline__ float sink_share(float value, const RowGradient& row) {
  return row.empty == 0 ? exponential(below_maximum(value, row.shift) * kExponentUnit) * row.factor * row.delta : 0.0f;
}
#endif

}  // namespace

// One block per sink, which sums over batches, queries and the heads that share it, always in the same order.
extern "C" __global__ void __launch_bounds__(256)
    flashlift_backward_sinks(const __grid_constant__ ForwardParams params,
                             const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles) {
  const int sink = static_cast<int>(blockIdx.x) % params.sinks_per_head;
  const int first_head = static_cast<int>(blockIdx.x) / params.sinks_per_head;
  const int heads = gridDim.x == params.sinks_per_head ? params.q_heads : 1;
  double sum = 0.0;
  for (int b = 0; b < params.batch; ++b) {
    for (int h = first_head; h < first_head + heads; ++h) {
      const float value = sink_at(params, h, sink);
#if !FL_ROW_TILES
      const RowGradient* const rows = row_gradients(params, backward, b, h);
#endif
      for (int q = threadIdx.x; q < params.q_len; q += 256) {
#if FL_ROW_TILES
        sum -= static_cast<double>(sink_share(value, tiles, b * params.q_heads + h, q));
#else
        sum -= static_cast<double>(sink_share(value, rows[q]));
#endif
      }
    }
  }
  __shared__ double sums[256];
  sums[threadIdx.x] = sum;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    backward.d_sinks[first_head * backward.d_sink_strides[0] + sink * backward.d_sink_strides[1]] =
        static_cast<float>(sums[0]);
  }
}
#endif

// A captured tensor's gradient from its dense sums, f32 or exact ones, into a tensor of any strides; element_type: 0 f32,
// 1 bf16, 2 f16.
extern "C" __global__ void flashlift_store_capture(const void* sums, int exact, const __grid_constant__ CaptureArgument to,
                                                   int rank, int element_type, long long count) {
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<long long>(gridDim.x) * blockDim.x) {
    long long rest = i;
    long long offset = 0;
    for (int d = rank - 1; d >= 0; --d) {
      offset += rest % to.sizes[d] * to.strides[d];
      rest /= to.sizes[d];
    }
    const float sum = exact != 0 ? rounded_sum(static_cast<const unsigned long long*>(sums) + i * kExactWords)
                                 : static_cast<const float*>(sums)[i];
    void* const data = const_cast<void*>(to.data);
    u32 packed;
    switch (element_type) {
      case 0:
        static_cast<float*>(data)[offset] = sum;
        break;
      case 1:
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(0.0f), "f"(sum));
        static_cast<unsigned short*>(data)[offset] = static_cast<unsigned short>(packed);
        break;
      default:
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(0.0f), "f"(sum));
        static_cast<unsigned short*>(data)[offset] = static_cast<unsigned short>(packed);
    }
  }
}

}  // namespace flashlift::cuda
