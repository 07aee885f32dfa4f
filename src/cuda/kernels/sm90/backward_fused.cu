// The Hopper backward kernel that computes all gradients with five products: d_k and d_v in registers, like the kernel
// for keys, and d_q in memory, to which every block adds the part of its keys.
//
// Two warpgroups have 64 keys each, and exchange their d_s of each query tile. Each computes its part of d_q with all
// 128 keys. A warp beside the producer adds the part to d_q's f32 sums in memory by bulk copies, in the order of the
// key tiles, so that the sums have the same bits in every run: RowTiles::last_adders records the key tile that added to
// a part last. (Without FL_ORDERED, in any order after the first one.)
//
// There is one block per multiprocessor, which processes several key tiles in sequence (RowTiles::next_block). While
// the consumers write the gradients of a key tile, the keys, values and first queries of the next one are loaded; keys
// earlier, if they have two stages. A key tile waits only for tiles of lower numbers, which blocks took before it, and
// iterates from the last queries to the first. Under a causal mask, the first keys, which most queries see, take the most
// time and come first, and blocks that start together process the same queries one after the other.
//
// Those that start together wait for each other at every tile. Where each key tile begins with later queries than the one
// before, most heads are therefore mirrored (BackwardParams::mirrored_heads): late keys come first, and a key tile iterates
// from its first queries to the last, so that the one it waits for is two tiles ahead of it from the start. The last heads
// are not, since their longest key tiles would come at the end.
// If nothing is masked, key tiles form rings instead (key_rings.cuh).
//
// A second kernel scales and rounds the sums.
#include "cuda/kernels/sm90/backward_adder.cuh"
#include "cuda/kernels/sm90/backward_fused.cuh"
#include "cuda/kernels/sm90/backward_keys.cuh"
#include "cuda/kernels/sm90/backward_producer.cuh"

namespace flashlift::cuda {
namespace {

// The key tile of an index; if there may be rings, also its place in one.
__device__ __forceinline__ auto keys_at(const ForwardParams& params, const BackwardParams& backward, int index) {
#if FL_RINGS
  return ring_tile<FL_BLOCK_M>(params, backward, index);
#else
  return fused_key_tile(params, backward, index);
#endif
}

// A mask that reads captured tensors needs more registers than 64 scores leave. It is therefore evaluated while the
// scores are computed, before d_p occupies registers. Other masks take fewer instructions if they are applied to the
// scores.
constexpr bool kMasksUnderProducts = FL_MASK_LOADS && kScores > 32;

// s and d_p have separate accumulators, so that the product d_p overlaps with the exponentials, and d_s is computed
// from unrounded probabilities. This uses all registers: see Product::body() (emit/wgmma_emitter.cpp), and the wait for
// d_k before d_p begins.
struct FusedConsumer : Consumer {
  u32 round = 0;  // how many column tiles there were
  u32 key_stage = 0;  // where the block's own keys are
  float d_p[kScores];

  // All column tiles. The part of d_q is a tile late, so that it does not wait for the other warpgroup's d_s; it leaves
  // the registers while d_k is summed. (Products in a branch make ptxas serialise all of them: the first part is of
  // nothing.)
  __device__ __forceinline__ void sweep(const BackwardParams& backward, const RowTiles& tiles) {
    take(keys_of_block(shared, key_stage));
#pragma unroll
    for (int i = 0; i < kFirstSums; ++i) {
      first[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kSecondSums; ++i) {
      second[i] = 0.0f;
    }
    u64 rows_qk = row_descriptor(shared.rows_qk + key_stage * kRowsQkBytes + warpgroup * kRowQkBytes);
    pin(rows_qk);
    int flags;
#pragma unroll 1
    do {
      const u32 stage = rings.qk.stage();
      const u32 qk = shared.columns_qk + stage * kColumnQkBytes;
      const u32 v = shared.columns_v + rings.v_stage() * kColumnVBytes;
      const u32 fields = shared.fields + 4 * kFieldCount * stage;
      const u32 statistics = shared.statistics + rings.v_stage() * kStatisticsBytes;
      barrier_wait(shared.qk_full + 8 * stage, rings.qk.phase());
      wait_for_turn();
      wgmma_fence();
      issue_scores<FL_QK_DIM>(s, rows_qk, descriptor_k_major(qk));
      flags = load_shared_once(fields + 4 * kFieldFlags);
      const bool partial = (flags & kPartial) != 0;
      u64 kept = ~u64{0};
      if (kMasksUnderProducts && partial) {
        kept = kept_scores(place(fields), FL_HAS_PLAIN_MASK && (flags & kPlain) != 0);
      }
      wgmma_wait<1>();
      finish_d_k((flags & kFirst) == 0, stage);
      barrier_wait(shared.v_full + 8 * rings.v_stage(), rings.v_phase());
      // (Of as many columns as rows_qk, these lie at a distance that is known: no registers.)
      const u64 rows_v = kKeyStages == 1 && kRowVBytes == kRowQkBytes ? rows_qk + kConsumers * kRowQkBytes / 16
                                                   : row_descriptor(shared.rows_v + warpgroup * kRowVBytes);
      wgmma_fence();
      issue_scores<FL_V_DIM>(d_p, rows_v, descriptor_k_major(v));
      pass_turn();
#if FL_DROPOUT
      const u32 undropped = undropped_bits<kScores>(params, place(fields));
#else
      constexpr u32 undropped = 0xffffffff;
#endif
      wgmma_wait<1>();
      pin(s);
      take_slopes(fields, flags, kept, undropped, statistics);
      pin(p);
      pin(first);
      wgmma_fence();
      issue_sum(first, p, descriptor_n_major(v, kColumnBoxBytes));
      wgmma_wait<1>();
      pin(d_p);
      // (Without a branch here ptxas spills where scores take all registers.)
      if (kGuardsAll || ((kMayMask || kScores > 32) && partial)) {
        multiply_slopes<true>(undropped, statistics + 4 * FL_BLOCK_N);
      } else {
        multiply_slopes<false>(undropped, statistics + 4 * FL_BLOCK_N);
      }
      float part[kPartSums];
      issue_part(part, (flags & kFirst) == 0);
      give_gradients();
      pin(ds);
      pin(second);
      wgmma_fence();
      issue_sum(second, ds, descriptor_n_major(qk, kColumnBoxBytes));
      wgmma_wait<1>();
      pin(first);
      pin(p);
      pin(part);
      barrier_arrive(shared.v_empty + 8 * rings.v_stage());  // each lane: see kQkReaders
      if ((flags & kFirst) == 0) {
        give_part(backward, tiles, part);
      }
      ++round;
      rings.advance();
    } while ((flags & kLast) == 0);
    finish(backward, tiles, (flags & kLeaves) != 0);
  }

  // Tells the threads that add parts up that there are no more.
  __device__ __forceinline__ void end() const {
    barrier_wait(shared.parts_empty + 8 * warpgroup, round % 2 ^ 1);
    barrier_arrive(shared.parts_full + 8 * warpgroup);
  }

 private:
  __device__ __forceinline__ void take(const KeyRows& keys) {
    b = keys.b;
    first_row = keys.first;
  }

  // Behind the last tile: its part of d_q, and the gradients of the block's keys, which are stored while the part before is
  // still being added up.
  __device__ __forceinline__ void finish(const BackwardParams& backward, const RowTiles& tiles, bool leaves) {
    float part[kPartSums];
    issue_part(part, true);
    // (Which keys they are is read again, not kept: registers are short.)
    KeyRows keys = keys_of_block(shared, key_stage);
    if (FL_RINGS && leaves) {
      keys.first = params.kv_len;  // no row is stored
    }
    take(keys);
    wgmma_wait<0>();
    finish_d_k(true, rings.qk.stage());
    pin(part);
    release(shared.rows_empty + 8 * key_stage);
    // (To spread the gradients of empty rows takes registers that the part has.)
    if (!FL_EMPTY_UNIFORM) {
      store_d_v(*this, params, backward, tiles, keys);
    }
    store_d_k(*this, params, backward, keys);
    give_part(backward, tiles, part);
    if (FL_EMPTY_UNIFORM) {
      store_d_v(*this, params, backward, tiles, keys);
    }
  }

  __device__ __forceinline__ TilePlace place(u32 fields) const {
    return {b,
            load_shared_once(fields + 4 * kFieldHead),
            {row(0), row(1)},
            load_shared_once(fields + 4 * kFieldFirst) + static_cast<int>(threadIdx.x) % 4 * 2};
  }

  // Products in s become probabilities times what the score changes by as the product does; p becomes the first sum's
  // operand. Element by element: registers are short.
  __device__ __forceinline__ void take_slopes(u32 fields, int flags, u64 kept, u32 undropped, u32 statistics) {
#if FL_HAS_SCORE_MOD
    TilePlace at = place(fields);
#if FL_SCORE_LOADS
    // Loads must not come before the scores: ptxas would put them, with their addresses, between the products.
    at.column |= __float_as_int(s[0]) & params.zero;
#endif
#if FL_GRADIENT_SEARCHES
    // In a loop that is not unrolled: few instructions, scores in local memory.
    float scores[kScores];
    float derivatives[kScores];
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      scores[i] = s[i];
    }
#pragma unroll 1
    for (int i = 0; i < kScores; ++i) {
      scores[i] = score_at(scores[i], params, at, i, derivatives[i]);
    }
#endif
#endif
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 lse = column_pair(statistics, j);
      float remaining[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = 4 * j + e;
        const float offset = e % 2 == 0 ? lse.x : lse.y;
#if !FL_HAS_SCORE_MOD
        const float x = exponential(fmaf(s[i], params.scale * kExponentUnit, -offset));
#else
#if FL_GRADIENT_SEARCHES
        const float score = scores[i];
        const float derivative = derivatives[i];
#else
        float derivative;
        const float score = score_at(s[i], params, at, i, derivative);
#endif
        const float x = exponential(fmaf(score, kExponentUnit, -offset));
#endif
        remaining[e] = FL_DROPOUT && (undropped >> i & 1) == 0 ? 0.0f : x;
#if FL_HAS_DERIVATIVE
        s[i] = x != 0.0f ? x * derivative : 0.0f;  // what is masked changes by anything
#else
        s[i] = x;
#endif
      }
      p[2 * j] = pack_half(remaining[0], remaining[1]);
      p[2 * j + 1] = pack_half(remaining[2], remaining[3]);
    }
    if ((flags & kPartial) != 0) {
      if (kMasksUnderProducts) {
        keep_scores<true>(kept);
      } else {
        mask<true>(place(fields), (flags & kPlain) != 0);
      }
    }
  }

  // s becomes d_s, as the second sum's operand. kGuards: as in multiply_gradients.
  template <bool kGuards>
  __device__ __forceinline__ void multiply_slopes(u32 undropped, u32 deltas) {
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 delta = column_pair(deltas, j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float d_s[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int i = 4 * j + 2 * r + c;
          float x = d_p[i];
#if FL_DROPOUT
          x = undropped >> i & 1 ? x * params.dropout_factor : 0.0f;
#endif
          x -= c == 0 ? delta.x : delta.y;
          d_s[c] = !kGuards || s[i] != 0.0f ? s[i] * x : 0.0f;
        }
        ds[2 * j + r] = pack_half(d_s[0], d_s[1]);
      }
    }
  }

  // Of the tile before the one in `stage`.
  __device__ __forceinline__ void finish_d_k(bool exists, u32 stage) {
    pin(second);
    pin(ds);
    if (exists) {
      barrier_arrive(shared.qk_empty + 8 * (stage == 0 ? kQkStages - 1 : stage - 1));
    }
  }

  // d_s of this round to all warpgroups.
  __device__ __forceinline__ void give_gradients() {
    const u32 stage = round % kGradientStages;
    barrier_wait(shared.gradients_empty + 8 * stage, round / kGradientStages % 2 ^ 1);
    const u32 lane = threadIdx.x % 32;
    const u32 row = 64 * warpgroup + threadIdx.x % 128 / 32 * 16 + lane % 16;
    const u32 address = shared.gradients + stage * kGradientBytes + row * 128;
#pragma unroll
    for (int step = 0; step < FL_BLOCK_N / 16; ++step) {
      store_matrices(address + step / 4 * kGradientBoxBytes + ((lane / 16 + step % 4 * 2) ^ (lane % 8)) * 16,
                     &ds[4 * step]);
    }
    release(shared.gradients_full + 8 * stage);
  }

  // This warpgroup's part of the last round's d_q, of all keys. (If there is none: of anything.)
  __device__ __forceinline__ void issue_part(float (&part)[kPartSums], bool exists) {
    const u32 stage = (round - 1) & 1;
    if (exists) {
      barrier_wait(shared.gradients_full + 8 * stage, (round - 1) / kGradientStages % 2);
    }
    // Whole boxes of columns, half of the only one, or 64 of the queries.
    const u32 columns =
        kPartsOfQueries ? 0
                        : warpgroup * (kPartColumns < kRowBoxColumns ? kPartColumns * 2
                                                                     : kPartColumns / kRowBoxColumns * kRowBoxBytes);
    const u32 queries = kPartsOfQueries ? warpgroup * kGradientBoxBytes : 0;
    const u64 d_s = descriptor_n_major(shared.gradients + stage * kGradientBytes + queries, 0);
    const u32 rows = shared.rows_qk + key_stage * kRowsQkBytes + columns;
    const u64 keys = kRowBoxColumns == 64 ? descriptor_n_major(rows, 0) : descriptor_narrow(rows, kRowBoxBytes);
    fence_async();
    wgmma_fence();
    wgmma_dq<kRowQkBytes / 16>(part, d_s, keys);
    wgmma_commit();
  }

  // That part to the warp that adds it up, or to d_q itself.
  __device__ __forceinline__ void give_part(const BackwardParams& backward, const RowTiles& tiles,
                                            const float (&part)[kPartSums]) {
    release(shared.gradients_empty + 8 * ((round - 1) % kGradientStages));
    barrier_wait(shared.parts_empty + 8 * warpgroup, (round - 1) % 2 ^ 1);
    const u32 visit = shared.visits + 4 * kVisitFieldCount * ((round - 1) % kVisitStages);
    const u32 address = shared.parts + warpgroup * kPartBytes + 16 * (threadIdx.x % 128);
    if (kStoresFinal && (load_shared_once(visit + 4 * kVisitFlags) & kFinal) != 0) {
      store_part(backward, tiles, part, visit, address);
    } else {
#pragma unroll
      for (int i = 0; i < kPartSums / 4; ++i) {
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address + i * 128 * 16), "f"(part[4 * i]),
                     "f"(part[4 * i + 1]), "f"(part[4 * i + 2]), "f"(part[4 * i + 3])
                     : "memory");
      }
    }
    barrier_arrive(shared.parts_full + 8 * warpgroup);
  }

  // Adds it to what the other key tiles have added, which came to shared memory, and stores the rows of d_q. A thread
  // has four columns of two rows at a time, as the kernel that rounds sums finds them.
  __device__ __forceinline__ void store_part(const BackwardParams& backward, const RowTiles& tiles,
                                             const float (&part)[kPartSums], u32 visit, u32 address) const {
    const int tile = load_shared_once(visit + 4 * kVisitTile);
    const bool adds = load_shared_once(visit + 4 * kVisitBefore) >= 0;
    const int head = tile / tiles.tiles;
    const int q = tile % tiles.tiles * tiles.rows + (kPartsOfQueries ? 64 * warpgroup : 0) +
                  static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    const int column = (kPartsOfQueries ? 0 : kPartColumns * warpgroup) + 8 * (static_cast<int>(threadIdx.x) % 4);
    const Strides& strides = backward.d_q_strides;
    InputElement* const row = static_cast<InputElement*>(backward.d_q) + head / params.q_heads * strides.batch +
                              head % params.q_heads * strides.head + q * strides.row + column;
    constexpr int kEights = kPartColumns / 8;
#pragma unroll
    for (int first = 0; first < kEights; first += 4) {
      u32 pairs[2][4] = {};
#pragma unroll
      for (int i = 0; i < min(4, kEights - first); ++i) {
        float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (adds) {
          asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                       : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                       : "r"(address + (first + i) * 128 * 16)
                       : "memory");
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int at = 2 * r;
          pairs[r][i] = pack_half((x[at] + part[4 * (first + i) + at]) * params.scale,
                                  (x[at + 1] + part[4 * (first + i) + at + 1]) * params.scale);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        transpose_quad(pairs[r]);
        const bool of_part = kEights % 4 == 0 || first + static_cast<int>(threadIdx.x) % 4 < kEights;
        if (of_part && q + 8 * r < params.q_len && column + 8 * first + 8 <= FL_HEAD_DIM) {
          *reinterpret_cast<uint4*>(row + 8 * r * strides.row + 8 * first) =
              make_uint4(pairs[r][0], pairs[r][1], pairs[r][2], pairs[r][3]);
        }
      }
    }
  }
};

// One thread: the first key tile to resume, if there is one. The block's own key tiles must be complete first, since they
// may wait for the one to resume, which the block would begin only behind them.
__device__ __forceinline__ LeftKeys wait_and_resume(const ForwardParams& params, const BackwardParams& backward,
                                                    const RowTiles& tiles, const SharedLayout& shared) {
#pragma unroll 1
  for (int part = 0; part < kParts; ++part) {
    while (load_shared_relaxed(shared.ring + 4 * (kAddedKeyTiles + part)) != load_shared(shared.ring + 4 * kKeyTiles)) {
    }
  }
  return resume_keys<FL_BLOCK_M>(params, backward, tiles);
}

// One thread: the index of the block's next key tile, or of none.
__device__ __forceinline__ int take_keys(const ForwardParams& params, const BackwardParams& backward,
                                         const RowTiles& tiles, const SharedLayout& shared) {
  const int count = key_tile_count(params, backward);
  LeftKeys left{};
  int index = count;
  if (load_relaxed(tiles.next_block + kLeftKeys) != 0) {
    left = wait_and_resume(params, backward, tiles, shared);
  }
  if (left.parts == 0) {
    index = atomicAdd(tiles.next_block, 1);
    if (index >= count && load_relaxed(tiles.next_block + kLeftKeys) != 0) {  // the last ones were left
      left = wait_and_resume(params, backward, tiles, shared);
    }
  }
  if (left.parts > 0) {
    index = left.index;
  }
  if (index < count) {
    const RingTile keys = ring_tile<FL_BLOCK_M>(params, backward, index);
    store_shared(shared.ring + 4 * kRingFirst, keys.ring.first);
    store_shared(shared.ring + 4 * kRingSize, keys.ring.size);
    store_shared(shared.ring + 4 * kRingPlace, keys.ring.place);
    store_shared(shared.ring + 4 * kRingEnd, left.parts > 0 ? -left.parts : keys.ring_end);
    store_shared(shared.ring + 4 * kKeyTiles, load_shared(shared.ring + 4 * kKeyTiles) + 1);
  }
  return index;
}

// The producer warp: key tiles until none is left. Blocks take them in the order in which they come to them. kInRings: key
// tiles form rings. (A call's registers and instructions are fewer if each case has code of its own.)
template <bool kInRings>
__device__ __forceinline__ void produce(const ForwardParams& params, const BackwardParams& backward,
                                        const RowTiles& tiles, const TensorMap& d_out_map, const SharedLayout& shared) {
  Producer producer{params, tiles, d_out_map, shared, 0, 0, backward};
  // In one register, since they are short: the number of the key tile, and below it that of the turn, modulo 4.
  u32 taken = 0;
#pragma unroll 1
  while (true) {
    int index = 0;
    if (producer.leads()) {
      index = kInRings ? take_keys(params, backward, tiles, shared) : atomicAdd(tiles.next_block, 1);
    }
    __syncwarp();
    index = producer.from_leader(index);
    taken = static_cast<u32>(index) * 4 + taken % 4;
    const auto key_stage = [&] { return taken % kKeyStages; };
    // Consumers may still read the rows of the last key tile in this stage.
    const auto wait_for_rows = [&] {
      barrier_wait(shared.rows_empty + 8 * key_stage(), taken / kKeyStages % 2 ^ 1);
    };
    if (index >= key_tile_count(params, backward)) {
      wait_for_rows();
      producer.end(key_stage());
      return;
    }
    const auto keys = keys_at(params, backward, index);
    producer.b = keys.b;
    producer.kv_head = keys.kv_head;
    producer.mirrored = keys.mirrored;
    producer.prefetch_rows(params.k_map, params.v_map, keys.b, keys.kv_head, keys.first);
    const auto load_rows = [&](const ColumnRings& first) {
      const auto load_keys = [&] {
        wait_for_rows();
        producer.load_keys(key_stage(), static_cast<int>(taken / 4), keys.first);
      };
      // Keys come first if they have a stage of their own. Otherwise values do, since consumers give them back first.
      if (kKeyStages > 1) {
        load_keys();
      }
      // Who has given the last tile's d_out back has multiplied it with the last values.
      const ColumnRings last = first.before();
      barrier_wait(shared.v_empty + 8 * last.v_stage(), last.v_phase());
      producer.load_values(keys.first, first.v_stage());
      if (kKeyStages == 1) {
        load_keys();
      }
    };
    const int first_head = keys.kv_head * params.group;
    const BlockRows rows{keys.b, first_head, first_head + params.group - 1, keys.first, keys.last, keys.mirrored};
    if constexpr (kInRings) {
      // (All lanes have read the key tile's place when one writes the next one's.)
      const int parts = __shfl_sync(0xffffffff, producer.load_ring(rows, kBlockVBytes, load_rows), 0);
      if (parts > 0 && producer.leads()) {
        leave_keys(tiles, {static_cast<int>(taken / 4), parts});
      }
    } else {
      // The tile for no rows.
      const ColumnTile nothing{true, first_head, (tiles.tiles - 1) * tiles.rows, kPartial};
      producer.load_all(rows, nothing, kBlockVBytes, [] {}, load_rows);
    }
    taken = (taken & ~3u) | ((taken + 1) & 3u);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashlift_backward_fused(const __grid_constant__ ForwardParams params,
                             const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles,
                             const __grid_constant__ TensorMap d_out_map) {
  if (others_run(backward, tiles)) {
    return;
  }
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const SharedLayout shared = shared_layout(shared_address(shared_memory));
#if FL_RINGS
  if (threadIdx.x < kRingWords) {
    store_shared(shared.ring + 4 * threadIdx.x, 0);
  }
#endif
  begin(shared, params, d_out_map);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_decrease<FL_PRODUCER_REGISTERS>();
    const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    if (warp == 0) {
#if FL_RINGS
      if (backward.ring_tiles > 1) {
        produce<true>(params, backward, tiles, d_out_map, shared);
      } else
#endif
      {
        produce<false>(params, backward, tiles, d_out_map, shared);
      }
    } else if (warp <= kParts) {
      if (elect_one()) {
        add_parts(shared, tiles, warp - 1, warp - 1);
      }
#if FL_HAS_MASK_MOD
    } else {
      look_for_nonfinite_keys(shared, tiles);
#endif
    }
  } else {
    registers_increase<FL_CONSUMER_REGISTERS>();
    FusedConsumer consumer{{params, shared, warpgroup - 1, 0, 0}};
    consumer.start();
#pragma unroll 1
    for (u32 turn = 0;; ++turn) {
      consumer.key_stage = turn % kKeyStages;
      barrier_wait(shared.rows_full + 8 * consumer.key_stage, turn / kKeyStages % 2);
      if (!has_keys(shared, consumer.key_stage)) {
        break;
      }
      consumer.sweep(backward, tiles);
    }
    consumer.end();
  }
}

}  // namespace flashlift::cuda
