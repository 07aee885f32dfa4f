// The Hopper forward kernel: one producer warp and two or three consumer warpgroups in a persistent block.
#include "bounds.cuh"
#include "cuda/kernels/sm90/consumer.cuh"
#include "cuda/kernels/sm90/producer.cuh"

namespace flashlift::cuda {

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashlift_forward(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const SharedLayout shared = shared_layout(shared_address(shared_memory));
  if (threadIdx.x == 0) {
    init_barriers(shared);
    prefetch_map(params.q_map);
    prefetch_map(params.k_map);
    prefetch_map(params.v_map);
  }
  __syncthreads();

  // The shuffle also shows the compiler that the value is the same in the whole warp.
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_decrease<FL_PRODUCER_REGISTERS>();
    if (threadIdx.x < 32) {
      Producer{params, shared}.run();
    }
#if FL_FINDS_VISITS
    else if (threadIdx.x < 64) {
      Scout{params, shared}.run();
    }
#endif
  } else {
    registers_increase<FL_CONSUMER_REGISTERS>();
    Consumer consumer{params, shared, warpgroup - 1};
    consumer.run();
  }
}

}  // namespace flashlift::cuda
