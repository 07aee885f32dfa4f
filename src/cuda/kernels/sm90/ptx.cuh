// Wrappers over the instructions that Hopper brought: mbarrier transactions, bulk tensor copies, warpgroup products.
#pragma once

#include "cuda/kernels/common/forward_params.h"
#include "cuda/kernels/common/ptx.cuh"

namespace flashlift::cuda {

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE_%=;\n"
      "bra WAIT_%=;\n"
      "DONE_%=:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// In a cluster of two blocks: the other one's rank, and the addresses of its shared memory.
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ u32 address_in(u32 address, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
// Behind reads of this block's memory only: a release of what was written, for the other block, would be a fence of the
// whole GPU.
__device__ __forceinline__ void barrier_arrive_remote(u32 remote_barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote_barrier) : "memory");
}
// Hands a number to the other block.
__device__ __forceinline__ void send_remote(u32 remote_address, int value, u32 remote_barrier) {
  asm volatile(
      "st.shared::cluster.b32 [%0], %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%2];\n" ::"r"(remote_address),
      "r"(value), "r"(remote_barrier)
      : "memory");
}
// Copies contiguous bytes to the other block. They count towards its barrier.
__device__ __forceinline__ void send_bytes(u32 remote_address, u32 address, u32 bytes, u32 remote_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          remote_address),
      "r"(address), "r"(bytes), "r"(remote_barrier)
      : "memory");
}
// As barrier_wait(), where threads of the other block arrive, too.
__device__ __forceinline__ void cluster_barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT_%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE_%=;\n"
      "bra WAIT_%=;\n"
      "DONE_%=:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// All threads of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Orders what was written to shared memory before bulk copies and products that read it. Whoever issues them executes
// this behind the barrier at which the writers arrived: it waits for the thread's own accesses, which a writer has just
// made, and a reader long ago.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copies one box of a (column, row, head, batch) tensor to shared memory; its bytes count towards `barrier`.
__device__ __forceinline__ void load_box(u32 destination, const TensorMap& map, u32 barrier, int column, int row,
                                         int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// The same into the same place of both blocks of a cluster; the bytes count towards the barrier of each.
__device__ __forceinline__ void load_box_for_both(u32 destination, const TensorMap& map, u32 barrier, int column,
                                                  int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "h"(static_cast<unsigned short>(3))
      : "memory");
}

// The same with a hint of how long the L2 cache should keep it.
__device__ __forceinline__ void load_box(u32 destination, const TensorMap& map, u32 barrier, int column, int row,
                                         int head, int batch, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(policy)
      : "memory");
}

__device__ __forceinline__ u64 evict_first_policy() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ u64 evict_normal_policy() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Prefetches such a box into the L2 cache.
__device__ __forceinline__ void prefetch_box(const TensorMap& map, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(column),
               "r"(row), "r"(head), "r"(batch)
               : "memory");
}

// True for one thread of a warp, always the same one; all of its threads call it. ptxas then knows that it is one, and
// puts no loop over threads around its bulk copies, as it does if a lane's number decides.
__device__ __forceinline__ bool elect_one() {
  int elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.s32 %0, 1, 0, elected;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// The lane that later signals to the producer that its warp has read reads for the whole warp. This lets racecheck
// follow the order, which it cannot do through __syncwarp.
__device__ __forceinline__ int load_shared_once(u32 address) {
  int value = 0;
  if (threadIdx.x % 32 == 0) {
    value = load_shared(address);
  }
  return __shfl_sync(0xffffffff, value, 0);
}

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void named_barrier_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int kCount>
__device__ __forceinline__ void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <int kCount>
__device__ __forceinline__ void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving reads or writes of registers that a warpgroup product owns across this point.
template <int kCount>
__device__ __forceinline__ void pin(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(values[i]));
  }
}

template <int kCount>
__device__ __forceinline__ void pin(u32 (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+r"(values[i]));
  }
}

__device__ __forceinline__ void pin(u64& value) { asm volatile("" : "+l"(value)); }

// Shared-memory descriptors of 128-byte-swizzled tiles whose rows are 64 elements of 16 bits.
// Rows along M or N, columns along K: groups of 8 rows are 1024 bytes apart.
__device__ __forceinline__ u64 descriptor_k_major(u32 address) {
  return static_cast<u64>((address & 0x3ffff) >> 4) | (u64{1} << 16) | (u64{64} << 32) | (u64{1} << 62);
}

// Rows along K, columns along N: groups of 8 rows are 1024 bytes apart, the next 64 columns `box_bytes`.
__device__ __forceinline__ u64 descriptor_n_major(u32 address, u32 box_bytes) {
  return static_cast<u64>((address & 0x3ffff) >> 4) | (static_cast<u64>(box_bytes >> 4) << 16) | (u64{64} << 32) |
         (u64{1} << 62);
}

// Of 32-byte-swizzled tiles whose rows are 16 elements: groups of 8 rows are 256 bytes apart, and the next 16 columns, where
// rows lie along K, `box_bytes`.
__device__ __forceinline__ u64 descriptor_narrow(u32 address, u32 box_bytes) {
  return static_cast<u64>((address & 0x3ffff) >> 4) | (static_cast<u64>(box_bytes >> 4) << 16) | (u64{16} << 32) |
         (u64{3} << 62);
}

// What other warps write meanwhile: ptxas may keep the values of other loads.
__device__ __forceinline__ int load_shared_relaxed(u32 address) {
  int value;
  asm volatile("ld.relaxed.cta.shared::cta.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_shared_relaxed(u32 address, int value) {
  asm volatile("st.relaxed.cta.shared::cta.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// What other blocks write.
__device__ __forceinline__ int load_relaxed(const int* address) {
  int value;
  asm volatile("ld.relaxed.gpu.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

}  // namespace flashlift::cuda
