// A consumer warpgroup of the Hopper forward kernel: 64 query rows against every visited key tile.
//
// Scores and probabilities never leave registers. The product for the next tile's scores is issued before this tile's
// product with V, so that the tensor cores have work during the softmax. The warpgroups issue products in turns (named
// barriers), so that the softmax of one overlaps with the products of the other. The pipeline is not drained between
// query tiles.
#pragma once

#include "cuda/kernels/common/epilogue.cuh"
#include "cuda/kernels/common/redo.cuh"
#include "cuda/kernels/common/softmax.cuh"
#include "cuda/kernels/sm90/pipeline.cuh"
#include "wgmma.cuh"

namespace flashlift::cuda {

// Named barrier 0 belongs to __syncthreads; the turns use 1 to kConsumers.
constexpr u32 kFirstTurnBarrier = 1;

constexpr bool kChecks = FL_HAS_MASK_MOD && !FL_REDO_ALL;  // see redo.cuh

struct Consumer {
  const ForwardParams& params;
  const SharedLayout& shared;
  const int warpgroup;
  RingPosition ring;
  u32 tiles = 0;       // query tiles started
  int left = 0;        // key tiles of the query tile, from the next one on; negative after the last query tile
  int index = 0;       // the present probabilities are of the key tile with this number in its query tile, or less
  bool check = false;  // the accumulator holds, for the first time, all tiles that contain masked scores
  float factor;
  u64 q;  // descriptor

  float scores[FL_BLOCK_N / 2];
  u32 probabilities[FL_BLOCK_N / 4];
  float output[FL_V_DIM / 2];
  RowState state;

  int b, h, row;     // of the query tile; row: this thread's first
  int partial_left;  // its tiles with masked scores, from the current one on; negative after them

  // For a query tile whose scores are complete, until its output is written.
  FinishedRows finished;
  float finished_maximum[2];

  __device__ __forceinline__ Rows rows() const { return {b, {h, h}, {row, row + 8}}; }

  __device__ __forceinline__ u32 fields_of(u32 tile) const {
    return shared.tile_fields + 4 * kFieldCount * (tile % kFieldSlots * kConsumers + warpgroup);
  }

  __device__ __forceinline__ void read_rows(u32 tile, Rows& rows) const {
    const u32 fields = fields_of(tile);
    rows.b = load_shared_once(fields + 4 * kFieldBatch);
    rows.h[0] = rows.h[1] = load_shared_once(fields + 4 * kFieldHead);
    rows.q[0] = load_shared_once(fields + 4 * kFieldRow) + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    rows.q[1] = rows.q[0] + 8;
  }

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

  __device__ __forceinline__ void issue_scores(u64 q, u64 k) {
    wgmma_qk<kQBoxBytes / 16, kKvBoxBytes / 16>(scores, q, k);
    wgmma_commit();
  }

  // `adds`: adds to the accumulator instead of overwriting it.
  __device__ __forceinline__ void issue_output(u64 v, bool adds) {
    wgmma_pv(output, probabilities, v, adds);
    wgmma_commit();
  }

  // The key tile, combined with kAddsZeros. Without mods it is needed only to mask the end of the keys, which is in a
  // query tile's first key tile.
  __device__ __forceinline__ int key_tile() const {
#if FL_HAS_MASK_MOD || FL_HAS_SCORE_MOD || FL_DROPOUT
    return load_shared_once(shared.kv_tile + 4 * ring.stage());
#else
    return max(kv_tile_count(params) - 1, 0);
#endif
  }

  __device__ __forceinline__ void apply_mods(int kv, bool partial, bool zeros) {
#if FL_SCORE_LOADS && !FL_SCORE_STRAIGHT_LOADS
    // Loads must come after the scores. Otherwise ptxas would put them, hundreds of instructions with their addresses,
    // between the products, which then start late.
    kv |= __float_as_int(scores[0]) & params.zero;
#endif
    apply_score_mod(scores, params, rows(), kv, zeros);
    if (partial) {
      apply_masks(scores, params, rows(), kv);
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < FL_BLOCK_N / 2; ++i) {
      scores[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < FL_BLOCK_N / 4; ++i) {
      probabilities[i] = 0;
    }
#pragma unroll
    for (int i = 0; i < FL_V_DIM / 2; ++i) {
      output[i] = 0.0f;
    }
    partial_left = 0;
  }

  // Reads the next query tile's fields, and skips the keys that the warpgroup's rows do not see.
  __device__ __forceinline__ void begin_tile() {
    barrier_wait(shared.q_full + 8 * q_slot(tiles, warpgroup), q_phase(tiles));
    left = load_shared_once(fields_of(tiles) + 4 * kFieldVisits);
#if FL_SKIPS
#pragma unroll 1
    for (int skipped = load_shared_once(fields_of(tiles) + 4 * kFieldSkipped); skipped > 0; --skipped) {
      barrier_wait(shared.k_full + 8 * ring.stage(), ring.phase());
      release(shared.k_empty + 8 * ring.stage());
      ring.advance();
    }
#endif
    ++tiles;
    index = -1;
  }

  // Skips the values of these keys; `last` is the position of the values before them.
  __device__ __forceinline__ void skip_values(RingPosition last) {
#pragma unroll 1
    while (last.position != ring.position) {
      last.advance();
      barrier_wait(shared.v_full + 8 * last.stage(), last.phase());
      release(shared.v_empty + 8 * last.stage());
    }
  }

  // Changes from one query tile, of whose rows only the last product is missing, to the next.
  __device__ __forceinline__ void change_rows() {
    if (tiles > 1) {
      finished = finish_rows(params, state, rows());
      finished_maximum[0] = state.maximum[0];
      finished_maximum[1] = state.maximum[1];
    }
    Rows at;
    read_rows(tiles - 1, at);
    b = at.b;
    h = at.h[0];
    row = at.q[0];
    partial_left = load_shared_once(fields_of(tiles - 1) + 4 * kFieldPartial);
    state = RowState();
  }

  // Called when the accumulator holds all tiles that contain masked scores.
  __device__ __forceinline__ void redo_if_nonfinite(bool ended, u32 last) {
#if FL_REDO_ALL || FL_HAS_MASK_MOD
    Rows at = rows();
    float maximum[2] = {state.maximum[0], state.maximum[1]};
    if (ended) {
      read_rows(last, at);
      maximum[0] = finished_maximum[0];
      maximum[1] = finished_maximum[1];
    }
    const int tile_row = at.q[0] - threadIdx.x % 128 / 32 * 16 - threadIdx.x % 32 / 4 - 64 * warpgroup;
    redo_nonfinite<FL_BLOCK_N>(output, maximum, params, tile_at(params, at.b, at.h[0], tile_row), at, 0);
#endif
  }

  // Called after a product. Does what is necessary if the product was the last with masked scores (`check`), or the
  // last of its query tile (`ends`), which is query tile number `last`.
  __device__ __forceinline__ void end_product(bool ends, u32 last) {
    if (kChecks ? check : FL_REDO_ALL && ends) {
      redo_if_nonfinite(ends, last);
    }
    if (ends) {
      Rows at;
      read_rows(last, at);
      write_rows(output, finished, params, at);
    }
  }

  // A round issues the scores of the next key tile, which may be another query tile's, and the product of the present
  // probabilities with V, whose copies use the same stage. The output of a query tile is written under the next one's
  // second scores, between the two.
  //
  // kPlain: the next key tile is the same query tile's, is not cut by the mask, and nothing is to be done with the
  // accumulator. Most rounds are. They have code of their own, because instructions are fetched in order: around the
  // code that others need, long rows of narrow heads were 7 % slower.
  //
  // Products in a branch make ptxas serialise all of them (C7520), and so does a way out between the two. The first
  // round therefore multiplies no probabilities, and the last two work on scores that do not count; the results are
  // dropped.
  template <bool kPlain>
  __device__ __forceinline__ void round() {
    const bool begins = !kPlain && index == 0;  // the probabilities in registers are a query tile's first
    const bool ended = begins && tiles > 1;     // the accumulator holds a whole query tile
    const bool changes = !kPlain && left == 0;
    RingPosition v_ring = ring;
#if FL_SKIPS
    if (changes) {
      begin_tile();
    }
#endif
    // Computed here: otherwise these instructions would come between the barriers and the products, which wait for each
    // of them.
    u64 k = descriptor_k_major(shared.k + ring.stage() * kKBytes);
    u64 v = descriptor_n_major(shared.v + v_ring.stage() * kVBytes, kKvBoxBytes);
    pin(k);
    pin(v);
#if !FL_SKIPS
    if (changes) {
      begin_tile();
    }
#endif
    barrier_wait(shared.k_full + 8 * ring.stage(), ring.phase());
    wait_turn();
    pin(scores);
    wgmma_fence();
    issue_scores(kQStages > 1 ? q + q_slot(tiles - 1, 0) * (kQBytes / 16) : q, k);
    if (begins) {
      pass_turn();
    }
    if (ended || (kChecks && !kPlain && check)) {
      wgmma_wait<1>();
      pin(output);
      end_product(ended, tiles - (changes ? 3 : 2));
    }
    barrier_wait(shared.v_full + 8 * v_ring.stage(), v_ring.phase());
    pin(probabilities);
    pin(output);
    wgmma_fence();
    issue_output(v, !begins);
    if (!begins) {
      pass_turn();
    }
    if (!kPlain) {
      check = --partial_left == 0;
    }
    if (changes) {
      change_rows();
    }
    const int kv_tile = key_tile();
    const bool zeros = FL_SCORE_ZEROS && (kv_tile & kAddsZeros) != 0;
    const int kv = (FL_SCORE_ZEROS ? kv_tile & ~kAddsZeros : kv_tile) * FL_BLOCK_N + threadIdx.x % 4 * 2;
    wgmma_wait<1>();
    pin(scores);
    release(shared.k_empty + 8 * ring.stage());
    if (left == 1) {
      release(shared.q_empty + 8 * q_slot(tiles - 1, warpgroup));
    }
    apply_mods(kv, !kPlain && partial_left > 0, zeros);
    const TileSoftmax tile = update_maxima(scores, state, factor);
    // Waits before the exponentials, not after them: packing then runs at the same time, which is worth more.
    wgmma_wait<0>();
    pin(output);
    pin(probabilities);  // the product has read them until now
    release(shared.v_empty + 8 * v_ring.stage());
#if FL_SKIPS
    if (changes) {
      skip_values(v_ring);
    }
#endif
    ring.advance();
    // Before the exponentials, not after them: ptxas would otherwise move the packing behind this branch, away from
    // them.
    if (tile.rescale && !changes) {
      rescale_rows(output, tile.alpha);
    }
    take_exponentials(scores, state, factor, tile);
    drop_out(scores, params, rows(), kv);
    pack_probabilities(scores, probabilities);
    if (!kPlain) {
      ++index;
    }
    --left;
  }

  __device__ __forceinline__ void run() {
    factor = score_factor(params);
    q = descriptor_k_major(shared.q + warpgroup * kQBytes);
    pin(q);
#if FL_PING_PONG
    if (warpgroup == kConsumers - 1) {
      pass_turn();
    }
#endif
    clear();
#pragma unroll 1
    do {
      round<false>();
#if FL_PLAIN_ROUNDS
      if (partial_left < 0) {
#pragma unroll 1
        while (left > 0) {
          round<true>();
        }
      }
#endif
    } while (left != kNoMoreTiles - kLastRounds);
#if FL_PING_PONG
    // Leaves no arrival on the barrier.
    if (warpgroup == 0) {
      wait_turn();
    }
#endif
  }
};

}  // namespace flashlift::cuda
