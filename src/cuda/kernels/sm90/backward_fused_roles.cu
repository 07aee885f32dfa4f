// The Hopper backward kernel that computes all gradients with five products, for rows so wide that a warpgroup's registers
// hold only one sum (backward_fused.cu has two). A block has 64 keys and three warpgroups of consumers: one sums d_v, one
// sums d_k (backward_roles.cuh), and the third one computes parts of d_q. Warps beside the producer add these up in memory,
// in the order of the key tiles (backward_adder.cuh).
//
// The two blocks of a cluster have 128 neighbouring keys, and exchange their d_s of each query tile. Each computes half of
// the columns of d_q with all 128 keys, so that half as much is added up as if each had all columns of its own keys.
#include "cuda/kernels/sm90/backward_fused.cuh"
#include "cuda/kernels/sm90/backward_roles.cuh"

namespace flashlift::cuda {
namespace {

constexpr int kBlockColumns = FL_PART_COLUMNS;  // of d_q, that a block computes: two parts
static_assert(kBlockColumns % kRowBoxColumns == 0, "whole boxes");

// The warpgroup of parts of d_q.
struct PartConsumer {
  const SharedLayout& shared;
  const u32 rank;  // of the block in its cluster
  u32 round = 0;   // how many column tiles there were

  // The other block's d_s will come for a stage.
  __device__ __forceinline__ void expect_gradients(u32 stage) const {
    if (threadIdx.x % 128 == 0) {
      barrier_arrive_expect(shared.other_gradients_full + 8 * stage, kBlockGradientBytes);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void start() const {
    for (u32 stage = 0; stage < kGradientStages; ++stage) {
      expect_gradients(stage);
    }
  }

  // All column tiles of a key tile.
  __device__ __forceinline__ void sweep() {
    const u64 own_keys =
        descriptor_narrow(shared.rows_qk + rank * (kBlockColumns / kRowBoxColumns) * kRowBoxBytes, kRowBoxBytes);
    const u64 other_keys = descriptor_narrow(shared.other_keys, kRowBoxBytes);
    int flags;
#pragma unroll 1
    do {
      const u32 stage = round % kGradientStages;
      const u32 phase = round / kGradientStages % 2;
      const u32 d_s = shared.gradients + stage * kGradientBytes;
      float parts[2 * kPartSums];
      barrier_wait(shared.gradients_full + 8 * stage, phase);
      flags = load_shared_once(shared.visits + 4 * kVisitFieldCount * (round % kVisitStages) + 4 * kVisitFlags);
      fence_async();
      wgmma_fence();
      wgmma_dq<0>(parts, descriptor_n_major(d_s, 0), own_keys);
      cluster_barrier_wait(shared.other_gradients_full + 8 * stage, phase);
      wgmma_fence();
      wgmma_dq_more<0>(parts, descriptor_n_major(d_s + kBlockGradientBytes, 0), other_keys);
      wgmma_commit();
      wgmma_wait<0>();
      pin(parts);
      expect_gradients(stage);
      if (threadIdx.x % 32 == 0) {
        barrier_arrive(shared.gradients_empty + 8 * stage);
        barrier_arrive_remote(address_in(shared.gradients_empty + 8 * stage, rank ^ 1));
      }
      if ((flags & kLast) != 0) {
        release(shared.rows_empty);
      }
      give_parts(parts);
      ++round;
    } while ((flags & kLast) == 0);
  }

  // Tells the threads that add parts up that there are no more.
  __device__ __forceinline__ void end() const {
    for (int stage = 0; stage < kPartStages; ++stage) {
      barrier_wait(shared.parts_empty + 8 * stage, round % 2 ^ 1);
      barrier_arrive(shared.parts_full + 8 * stage);
    }
  }

 private:
  __device__ __forceinline__ void give_parts(const float (&parts)[2 * kPartSums]) const {
#pragma unroll
    for (int stage = 0; stage < kPartStages; ++stage) {
      barrier_wait(shared.parts_empty + 8 * stage, round % 2 ^ 1);
      const u32 address = shared.parts + stage * kPartBytes + 16 * (threadIdx.x % 128);
#pragma unroll
      for (int i = 0; i < kPartSums; i += 4) {
        const int at = stage * kPartSums + i;
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address + i / 4 * 128 * 16), "f"(parts[at]),
                     "f"(parts[at + 1]), "f"(parts[at + 2]), "f"(parts[at + 3])
                     : "memory");
      }
      barrier_arrive(shared.parts_full + 8 * stage);
    }
  }
};

__device__ __forceinline__ void produce(const ForwardParams& params, const BackwardParams& backward,
                                        const RowTiles& tiles, const TensorMap& d_out_map, const SharedLayout& shared,
                                        u32 rank) {
  Producer producer{params, tiles, d_out_map, shared, 0, 0, backward};
#pragma unroll 1
  for (u32 turn = 0;; ++turn) {
    const int index = take_for_cluster(producer, shared, rank, tiles.next_block, turn);
    // Consumers may still read the last key tile's rows.
    const auto wait_for_rows = [&] { barrier_wait(shared.rows_empty, turn % 2 ^ 1); };
    if (index >= key_tile_count(params, backward)) {
      wait_for_rows();
      producer.end(0);
      return;
    }
    const KeyTile keys = fused_key_tile(params, backward, index);
    const int first_key = keys.first + 64 * static_cast<int>(rank);
    producer.b = keys.b;
    producer.kv_head = keys.kv_head;
    producer.mirrored = keys.mirrored;
    producer.prefetch_rows(params.k_map, params.v_map, keys.b, keys.kv_head, first_key);
    const int first_head = keys.kv_head * params.group;
    // The tile for no rows.
    const ColumnTile nothing{true, first_head, (tiles.tiles - 1) * tiles.rows, kPartial};
    producer.load_all(
        {keys.b, first_head, first_head + params.group - 1, keys.first, keys.last, keys.mirrored}, nothing, kBlockVBytes, [] {},
        [&](const ColumnRings& first) {
          // Who has given the last tile's d_out back has multiplied it with the last values.
          const ColumnRings last = first.before();
          barrier_wait(shared.v_empty + 8 * last.v_stage(), last.v_phase());
          producer.load_values(first_key, first.v_stage());
          wait_for_rows();
          producer.load_keys(0, index, first_key);
          producer.load_other_keys(keys.first + 64 * static_cast<int>(rank ^ 1),
                                   static_cast<int>(rank) * kBlockColumns);
        });
  }
}

// Calls use(keys) for each key tile, when its keys are there.
template <typename Use>
__device__ __forceinline__ void for_each_tile(const SharedLayout& shared, const Use& use) {
#pragma unroll 1
  for (u32 turn = 0;; ++turn) {
    barrier_wait(shared.rows_full, turn % 2);
    if (!has_keys(shared, 0)) {
      break;
    }
    use(keys_of_block(shared, 0));
  }
}

}  // namespace

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    flashlift_backward_fused(const __grid_constant__ ForwardParams params,
                             const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles,
                             const __grid_constant__ TensorMap d_out_map) {
  if (others_run(backward, tiles)) {
    return;
  }
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const SharedLayout shared = shared_layout(shared_address(shared_memory));
  begin(shared, params, d_out_map);
  cluster_sync();
  const u32 rank = cluster_rank();
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_decrease<FL_PRODUCER_REGISTERS>();
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    if (warp == 0) {
      produce(params, backward, tiles, d_out_map, shared, rank);
    } else if (warp <= kPartStages) {
      if (elect_one()) {
        add_parts(shared, tiles, static_cast<int>(rank) * kPartStages + warp - 1, warp - 1);
      }
      __syncwarp();
#if FL_HAS_MASK_MOD
    } else {
      look_for_nonfinite_keys(shared, tiles);
#endif
    }
  } else if (warpgroup == 1) {
    registers_increase<FL_CONSUMER_REGISTERS>();
    RoleConsumer consumer{{params, shared, 0, 0, 0}, {}, rank ^ 1};
    for_each_tile(shared, [&](const KeyRows& keys) {
      consumer.begin_tile(keys.b, keys.first);
      consumer.sum_values();
      store_d_v(consumer, params, backward, tiles, keys);
    });
  } else if (warpgroup == 2) {
    registers_increase<FL_CONSUMER_REGISTERS>();
    RoleConsumer consumer{{params, shared, 0, 0, 0}, {}, rank ^ 1};
    for_each_tile(shared, [&](const KeyRows& keys) {
      consumer.begin_tile(keys.b, keys.first);
      release(shared.rows_empty);  // its number has been read
      consumer.sum_keys();
      store_d_k(consumer, params, backward, keys);
    });
  } else {
    registers_decrease<kPartRegisters>();
    PartConsumer consumer{shared, rank};
    consumer.start();
    for_each_tile(shared, [&](const KeyRows&) { consumer.sweep(); });
    consumer.end();
  }
  cluster_sync();  // the other block may still arrive here, and send its d_s
}

}  // namespace flashlift::cuda
