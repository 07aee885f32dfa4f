// Consumers by roles: of a block's 64 keys, one warpgroup sums d_v and another one d_k. The probabilities go from one to
// the other through shared memory: rounded to 16 bits as both sums need them, but in the fused kernel in f32, one half of
// a tile after the other, since their rounding would cause a visible error in d_q (docs/lessons/).
//
// The two blocks of a cluster have 128 neighbouring keys and visit the same query tiles. If they load columns for each
// other (kSharesLoads), a stage is free when the consumers of both have given it back.
#pragma once

#include "cuda/kernels/sm90/backward_keys.cuh"
#include "cuda/kernels/sm90/backward_producer.cuh"

namespace flashlift::cuda {

struct RoleConsumer : Consumer {
  ColumnRing<kExchangeStages> exchange;
  const u32 other;  // block of the cluster
  u32 round = 0;    // how many column tiles there were, in the fused kernel

  // first: the block's first key.
  __device__ __forceinline__ void begin_tile(int batch, int first) {
    b = batch;
    first_row = first;
  }

  // One arrival a warp, at both blocks' barriers if they load for each other.
  __device__ __forceinline__ void release_v(u32 stage) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      barrier_arrive(shared.v_empty + 8 * stage);
      if (kSharesLoads) {
        barrier_arrive_remote(address_in(shared.v_empty + 8 * stage, other));
      }
    }
  }
  // Here all lanes at their own block's, which have read statistics of its stage.
  __device__ __forceinline__ void release_qk_stage(u32 stage) const {
    __syncwarp();
    barrier_arrive(shared.qk_empty + 8 * stage);
    if (kSharesLoads && threadIdx.x % 32 == 0) {
      barrier_arrive_remote(address_in(shared.qk_empty + 8 * stage, other));
    }
  }

  // A thread's operands, in pieces of 16 bytes.
  __device__ __forceinline__ u32 place_in_exchange() const {
    return shared.exchange + exchange.stage() * kExchangeBytes + 16 * (threadIdx.x % 128);
  }

  // Warpgroup 0: the probabilities and d_v.
  __device__ __forceinline__ void sum_values() {
#pragma unroll
    for (int i = 0; i < kFirstSums; ++i) {
      first[i] = 0.0f;
    }
    u64 rows_qk = row_descriptor(shared.rows_qk);
    pin(rows_qk);
    u32 previous = kNone;  // the stage of d_out whose sum runs
    int flags;
#pragma unroll 1
    do {
      const u32 stage = rings.qk.stage();
      const u32 v_stage = rings.v_stage();
      const u32 fields = shared.fields + 4 * kFieldCount * stage;
      barrier_wait(shared.qk_full + 8 * stage, rings.qk.phase());
      pin(s);
      wgmma_fence();
      issue_scores<FL_QK_DIM>(s, rows_qk, descriptor_k_major(shared.columns_qk + stage * kColumnQkBytes));
      flags = load_shared_once(fields + 4 * kFieldFlags);
      const TilePlace place{b,
                            load_shared_once(fields + 4 * kFieldHead),
                            {row(0), row(1)},
                            load_shared_once(fields + 4 * kFieldFirst) + static_cast<int>(threadIdx.x) % 4 * 2};
      wgmma_wait<1>();
      pin(first);
      pin(p);
      if (previous != kNone) {
        release_v(previous);
      }
      wgmma_wait<0>();
      pin(s);
      if ((flags & kLast) != 0) {
        release(shared.rows_empty);  // the next tile's K may come
      }
#if FL_FUSED
      give_unrounded(place, flags, stage);
#else
      take_probabilities(place, flags, 0xffffffff, shared.statistics + stage * kStatisticsBytes);
      release_qk_stage(stage);
      barrier_wait(shared.exchange_empty + 8 * exchange.stage(), exchange.phase() ^ 1);
      const u32 to = place_in_exchange();
#pragma unroll
      for (int i = 0; i < kScores / 2; i += 4) {
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + i / 4 * 128 * 16), "r"(p[i]), "r"(p[i + 1]),
                     "r"(p[i + 2]), "r"(p[i + 3])
                     : "memory");
      }
      barrier_arrive(shared.exchange_full + 8 * exchange.stage());
      exchange.advance();
#endif
      barrier_wait(shared.v_full + 8 * v_stage, rings.v_phase());
      pin(p);
      pin(first);
      wgmma_fence();
      issue_sum(first, p, descriptor_n_major(shared.columns_v + v_stage * kColumnVBytes, kColumnBoxBytes));
      previous = v_stage;
      rings.advance();
    } while ((flags & kLast) == 0);
    wgmma_wait<0>();
    pin(first);
    pin(p);
    release_v(previous);
  }

  // Warpgroup 1: d_p and d_k.
  __device__ __forceinline__ void sum_keys() {
#pragma unroll
    for (int i = 0; i < kSecondSums; ++i) {
      second[i] = 0.0f;
    }
    u64 rows_v = row_descriptor(shared.rows_v);
    pin(rows_v);
    u32 previous = kNone;  // the stage of q whose sum runs
    int flags;
#pragma unroll 1
    do {
      const u32 stage = rings.qk.stage();
      const u32 v_stage = rings.v_stage();
      barrier_wait(shared.v_full + 8 * v_stage, rings.v_phase());
      pin(s);
      wgmma_fence();
      issue_scores<FL_V_DIM>(s, rows_v, descriptor_k_major(shared.columns_v + v_stage * kColumnVBytes));
      wgmma_wait<1>();
      pin(second);
      pin(p);
      if (previous != kNone) {
        release_qk_stage(previous);
      }
      barrier_wait(shared.qk_full + 8 * stage, rings.qk.phase());
      flags = load_shared_once(shared.fields + 4 * kFieldCount * stage + 4 * kFieldFlags);
      wgmma_wait<0>();
      pin(s);
      release_v(v_stage);
#if FL_FUSED
      const u32 deltas = shared.statistics + stage * kStatisticsBytes + 4 * FL_BLOCK_N;
      if (kMayMask && (flags & kPartial) != 0) {
        take_unrounded<true>(deltas);
      } else {
        take_unrounded<false>(deltas);
      }
#else
      barrier_wait(shared.exchange_full + 8 * exchange.stage(), exchange.phase());
      const u32 from = place_in_exchange();
#pragma unroll
      for (int i = 0; i < kScores / 2; i += 4) {
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(p[i]), "=r"(p[i + 1]), "=r"(p[i + 2]), "=r"(p[i + 3])
                     : "r"(from + i / 4 * 128 * 16)
                     : "memory");
      }
      barrier_arrive(shared.exchange_empty + 8 * exchange.stage());
      exchange.advance();
      take_gradients((flags & kPartial) != 0, 0xffffffff,
                     shared.statistics + stage * kStatisticsBytes + 4 * FL_BLOCK_N);
#endif
#if FL_FUSED
      give_gradients();
#endif
      pin(p);
      pin(second);
      wgmma_fence();
      issue_sum(second, p, descriptor_n_major(shared.columns_qk + stage * kColumnQkBytes, kColumnBoxBytes));
#if FL_FUSED
      send_gradients();
      ++round;
#endif
      previous = stage;
      rings.advance();
    } while ((flags & kLast) == 0);
    wgmma_wait<0>();
    pin(second);
    pin(p);
    release_qk_stage(previous);
  }

#if FL_FUSED
 private:
  // Of a thread, in half of a tile.
  static constexpr int kHalf = kScores / 2;

  // s becomes the probabilities, and p the left operand of d_v. They go to the other warpgroup in halves.
  __device__ __forceinline__ void give_unrounded(const TilePlace& place, int flags, u32 stage) {
    exponentials(params.scale * kExponentUnit, shared.statistics + stage * kStatisticsBytes);
    if ((flags & kPartial) != 0) {
      mask<false>(place, (flags & kPlain) != 0);
    }
    release_qk_stage(stage);
    give_half(0);
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      p[i] = pack_half(s[2 * i], s[2 * i + 1]);
    }
    give_half(kHalf);
  }
  __device__ __forceinline__ void give_half(int first) {
    barrier_wait(shared.exchange_empty + 8 * exchange.stage(), exchange.phase() ^ 1);
    const u32 to = place_in_exchange();
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + i / 4 * 128 * 16), "f"(s[first + i]),
                   "f"(s[first + i + 1]), "f"(s[first + i + 2]), "f"(s[first + i + 3])
                   : "memory");
    }
    barrier_arrive(shared.exchange_full + 8 * exchange.stage());
    exchange.advance();
  }

  // s is d_p; p becomes d_s, as the left operand of d_k. kGuards: as in multiply_gradients.
  template <bool kGuards>
  __device__ __forceinline__ void take_unrounded(u32 deltas) {
#pragma unroll
    for (int first = 0; first < kScores; first += kHalf) {
      barrier_wait(shared.exchange_full + 8 * exchange.stage(), exchange.phase());
      const u32 from = place_in_exchange();
      float probabilities[kHalf];
#pragma unroll
      for (int i = 0; i < kHalf; i += 4) {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(probabilities[i]), "=f"(probabilities[i + 1]), "=f"(probabilities[i + 2]),
                       "=f"(probabilities[i + 3])
                     : "r"(from + i / 4 * 128 * 16)
                     : "memory");
      }
      barrier_arrive(shared.exchange_empty + 8 * exchange.stage());
      exchange.advance();
#pragma unroll
      for (int i = 0; i < kHalf; i += 2) {
        const int at = first + i;
        const float2 delta = column_pair(deltas, at / 4);
        float d_s[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float x = s[at + c] - (c == 0 ? delta.x : delta.y);
          d_s[c] = !kGuards || probabilities[i + c] != 0.0f ? probabilities[i + c] * x : 0.0f;
        }
        p[at / 2] = pack_half(d_s[0], d_s[1]);
      }
    }
  }

  // d_s of this round, for this block's part of d_q.
  __device__ __forceinline__ void give_gradients() const {
    const u32 stage = round % kGradientStages;
    cluster_barrier_wait(shared.gradients_empty + 8 * stage, round / kGradientStages % 2 ^ 1);
    const u32 lane = threadIdx.x % 32;
    const u32 row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    const u32 address = shared.gradients + stage * kGradientBytes + row * 128;
#pragma unroll
    for (int step = 0; step < FL_BLOCK_N / 16; ++step) {
      store_matrices(address + ((lane / 16 + step * 2) ^ (lane % 8)) * 16, &p[4 * step]);
    }
    release(shared.gradients_full + 8 * stage);
  }
  // And for the other block's. Its stage is empty if this block's is: both have been given back by both.
  __device__ __forceinline__ void send_gradients() const {
    if (threadIdx.x % 128 == 0) {
      const u32 stage = round % kGradientStages;
      barrier_wait(shared.gradients_full + 8 * stage, round / kGradientStages % 2);
      fence_async();
      const u32 from = shared.gradients + stage * kGradientBytes;
      send_bytes(address_in(from + kBlockGradientBytes, other), from, kBlockGradientBytes,
                 address_in(shared.other_gradients_full + 8 * stage, other));
    }
    __syncwarp();
  }
#endif
};

// The number of the cluster's next key tile. The first block takes it from a counter, and tells the other.
__device__ __forceinline__ int take_for_cluster(const Producer& producer, const SharedLayout& shared, u32 rank,
                                                int* counter, u32 turn) {
  const u32 at = turn % kClusterTurns;
  if (rank == 0) {
    const int index = producer.take(counter);
    if (producer.leads()) {
      send_remote(address_in(shared.cluster_turns + 4 * at, 1), index,
                  address_in(shared.cluster_turns_full + 8 * at, 1));
    }
    return index;
  }
  cluster_barrier_wait(shared.cluster_turns_full + 8 * at, turn / kClusterTurns % 2);
  return load_shared_once(shared.cluster_turns + 4 * at);
}

}  // namespace flashlift::cuda
