// A consumer warpgroup of the Hopper forward kernel: 64 query rows against every visited key tile.
//
// Scores and probabilities never leave registers. The next tile's scores are issued before this tile's product with V,
// so that the tensor cores have work while the softmax runs; and the warpgroups take turns at issuing (named barriers),
// so that one's softmax falls under the other's products.
#pragma once

#include "epilogue.cuh"
#include "redo.cuh"
#include "sm90_pipeline.cuh"
#include "softmax.cuh"
#include "wgmma.cuh"

namespace flashlift::cuda {

// Named barrier 0 is __syncthreads'; the turns use 1 to kConsumers.
constexpr u32 kFirstTurnBarrier = 1;

struct Consumer {
  const ForwardParams& params;
  const SharedLayout& shared;
  const int warpgroup;
  RingPosition k_ring;
  RingPosition v_ring;
  u32 q_phase = 0;

  // Registers of one query tile.
  float scores[FL_BLOCK_N / 2];
  u32 probabilities[FL_BLOCK_N / 4];
  float output[FL_V_DIM / 2];
  RowState state;

  int b, h, row;  // row: this thread's first
  int masked_left;  // tiles to come that the mask cuts through; negative after them

  // To be called when the accumulator holds all tiles but those to come.
  __device__ __forceinline__ void redo_if_nonfinite() {
    if (FL_REDO_ALL || masked_left == 0) {
      const int tile_row = row - threadIdx.x % 128 / 32 * 16 - threadIdx.x % 32 / 4 - 64 * warpgroup;
      redo_nonfinite<FL_BLOCK_N>(output, state, params, tile_at(params, b, h, tile_row), rows(), 0);
    }
  }

  __device__ __forceinline__ Rows rows() const { return {b, {h, h}, {row, row + 8}}; }

  __device__ __forceinline__ void wait_turn() {
#if FL_PING_PONG
    named_barrier_sync(kFirstTurnBarrier + warpgroup, 256);
#endif
  }

  __device__ __forceinline__ void pass_turn() {
#if FL_PING_PONG
    named_barrier_arrive(kFirstTurnBarrier + (warpgroup + 1 == kConsumers ? 0 : warpgroup + 1), 256);
#endif
  }

  __device__ __forceinline__ void issue_scores() {
    const u64 q = descriptor_k_major(shared.q + warpgroup * kQBytes);
    const u64 k = descriptor_k_major(shared.k + k_ring.stage() * kKBytes);
#pragma unroll
    for (int step = 0; step < FL_QK_DIM / 16; ++step) {
      // 16 elements are 32 bytes of a 128-byte row; after four steps comes the next box. Descriptors count 16 bytes.
      const int within = step % 4 * 2;
      const int box = step / 4;
      wgmma_qk(scores, q + within + box * (kQBoxBytes / 16), k + within + box * (kKvBoxBytes / 16), step > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void issue_output() {
    const u64 v = descriptor_n_major(shared.v + v_ring.stage() * kVBytes, kKvBoxBytes);
#pragma unroll
    for (int step = 0; step < FL_BLOCK_N / 16; ++step) {
      // 16 keys are 16 rows of 128 bytes.
      wgmma_pv(output, probabilities[4 * step], probabilities[4 * step + 1], probabilities[4 * step + 2],
               probabilities[4 * step + 3], v + step * 128);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ int kv_of_stage() const {
    return load_shared_once(shared.kv_tile + 4 * k_ring.stage()) * FL_BLOCK_N + threadIdx.x % 4 * 2;
  }

  __device__ __forceinline__ void apply_mods(int kv, bool partial) {
#if FL_SCORE_LOADS && !FL_SCORE_STRAIGHT_LOADS
    // Loads must not come before the scores: ptxas would put them, hundreds of instructions with their addresses, between
    // the products, which then start late.
    kv |= __float_as_int(scores[0]) & params.zero;
#endif
    apply_score_mod(scores, params, rows(), kv);
    if (partial) {
      apply_mask_mod(scores, params, rows(), kv);
    }
  }

  // Scores of the next tile, output of the last one.
  __device__ __forceinline__ void next_tile(float factor, bool masked, bool last) {
    barrier_wait(shared.k_full + 8 * k_ring.stage(), k_ring.phase());
    wait_turn();
    pin(scores);
    pin(probabilities);
    pin(output);
    wgmma_fence();
    issue_scores();
    barrier_wait(shared.v_full + 8 * v_ring.stage(), v_ring.phase());
    wgmma_fence();
    issue_output();
    pass_turn();
    const int kv = kv_of_stage();
    wgmma_wait<1>();
    pin(scores);
    release(shared.k_empty + 8 * k_ring.stage());
    if (last) {
      release(shared.q_empty + 8 * warpgroup);
    }
    k_ring.advance();
    apply_mods(kv, masked);
    const TileSoftmax tile = update_maxima(scores, state, factor);
    // Not after the exponentials: to wait before them lets packing run beside them, which is worth more.
    wgmma_wait<0>();
    pin(output);
    release(shared.v_empty + 8 * v_ring.stage());
    v_ring.advance();
    // Not after the exponentials: ptxas would then move the packing behind this branch, away from them.
    if (tile.rescale) {
      rescale_rows(output, tile.alpha);
    }
    take_exponentials(scores, state, factor, tile);
    drop_out(scores, params, rows(), kv);
    pin(probabilities);
    pack_probabilities(scores, probabilities);
  }

  // From one query tile to the next without draining the pipeline: the last product of the old tile and the first
  // scores of the new one are in flight together, and the old output is written under the new scores. `pending` says
  // that there is an old tile. Gives the new tile's visits.
  //
  // Products in a branch make ptxas serialise all of them (C7520), so both are issued even where there is no old or no
  // new tile: they then work on whatever is in shared memory, and the result is dropped.
  __device__ __forceinline__ int change_tile(bool pending, float factor) {
    if (pending) {
      barrier_wait(shared.v_full + 8 * v_ring.stage(), v_ring.phase());
    }
    pin(probabilities);
    pin(output);
    wgmma_fence();
    issue_output();
    barrier_wait(shared.q_full + 8 * warpgroup, q_phase);
    q_phase ^= 1;
    const u32 fields = shared.tile_fields + 4 * kFieldCount * warpgroup;
    const int visits = load_shared_once(fields + 4 * kFieldVisits);
    if (visits > 0) {
      barrier_wait(shared.k_full + 8 * k_ring.stage(), k_ring.phase());
    }
    wait_turn();
    pin(scores);
    wgmma_fence();
    issue_scores();
    pass_turn();
    wgmma_wait<1>();
    pin(output);
    if (pending) {
      release(shared.v_empty + 8 * v_ring.stage());
      v_ring.advance();
      redo_if_nonfinite();
      write_output(output, state, params, rows());
    }
    const int partial = load_shared_once(fields + 4 * kFieldPartial);
    masked_left = partial - 1;
    b = load_shared_once(fields + 4 * kFieldBatch);
    h = load_shared_once(fields + 4 * kFieldHead);
    row = load_shared_once(fields + 4 * kFieldRow) + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    state = RowState();
#pragma unroll
    for (int i = 0; i < FL_V_DIM / 2; ++i) {
      output[i] = 0.0f;
    }
    const int kv = kv_of_stage();
    wgmma_wait<0>();
    pin(scores);
    if (visits <= 1) {
      release(shared.q_empty + 8 * warpgroup);
    }
    if (visits > 0) {
      release(shared.k_empty + 8 * k_ring.stage());
      k_ring.advance();
      apply_mods(kv, partial > 0);
      take_exponentials(scores, state, factor, update_maxima(scores, state, factor));
      drop_out(scores, params, rows(), kv);
    }
    pack_probabilities(scores, probabilities);
    return visits;
  }

  __device__ __forceinline__ void run() {
    const float factor = score_factor(params);
#if FL_PING_PONG
    if (warpgroup == kConsumers - 1) {
      pass_turn();
    }
#endif
    bool pending = false;
    while (true) {
      const int visits = change_tile(pending, factor);
      if (visits == kNoMoreTiles) {
        break;
      }
      pending = visits > 0;
#pragma unroll 1
      for (int left = visits - 1; left > 0; --left) {
        next_tile(factor, FL_HAS_MASK_MOD && masked_left > 0, left == 1);
#if FL_HAS_MASK_MOD && !FL_REDO_ALL
        redo_if_nonfinite();
#endif
        --masked_left;
      }
      if (!pending) {
        write_output(output, state, params, rows());
      }
    }
#if FL_PING_PONG
    // Leave no arrival behind.
    if (warpgroup == 0) {
      wait_turn();
    }
#endif
  }
};

}  // namespace flashlift::cuda
