// A consumer warpgroup of the Hopper backward kernels: 64 rows against every visited column tile.
//
// For each tile it computes two products, s = <q, k> and d_p = <d_out, v>, whose results never leave registers. These
// results are then the left operands of sums over columns:
//
//   rows are   first                              second
//   queries    sum of p * derivative * k (below)  sum of d_s * k: d_q
//   keys       sum of p * d_out: d_v              sum of d_s * q: d_k
//
// If registers do not hold both sums, the kernel for queries leaves out the first one, and each warpgroup of the kernel
// for keys computes one (backward_keys_roles.cu), or there are two kernels for keys. For sizes in between, the operand of
// a key's second sum replaces the operand of the first sum, which is complete by then.
//
// s and d_p share one accumulator (but see FL_D_P_APART below): probabilities are kept elsewhere until d_p is computed,
// rounded to 16 bits where a sum multiplies them anyway. A warpgroup therefore has no products of its own during its
// exponentials. They overlap with the products of the other warpgroup, which takes its turn in between.
//
// FL_D_P_APART: the kernel for queries, if it leaves out the first sum and registers hold two accumulators, issues d_p with
// the scores. Its product then runs during the warpgroup's own exponentials.
//
// d_s = p * (d_p - delta), with delta = <d_out, out>, which all columns of a row share. The rounding of the output to
// 16 bits causes an error in delta, which is too large if all values are similar, or one key has nearly the whole
// weight of a row. The kernel whose rows are queries can measure this error, since the d_s of a row should add up to
// zero. It corrects delta for the kernels whose rows are keys, which run after it, and subtracts the error times its
// first sum from d_q. That sum costs almost nothing, because it runs while d_s is computed. Without the sum, the kernel
// starts again if the error is too large.
#pragma once

#include "cuda/kernels/common/gradients.cuh"
#include "cuda/kernels/sm90/backward_pipeline.cuh"
#include "wgmma.cuh"

namespace flashlift::cuda {

constexpr int kScores = FL_BLOCK_N / 2;                                                       // of a thread
constexpr int kFirstSums = !FL_SUMS_FIRST ? 4 : kRowsAreKeys ? FL_V_DIM / 2 : FL_QK_DIM / 2;  // (arrays have elements)
constexpr int kSecondSums = FL_SUMS_SECOND ? FL_QK_DIM / 2 : 4;
// Whether the operands of the two sums differ by more than the factor d_p.
constexpr bool kTwoFactors = FL_HAS_DERIVATIVE || FL_DROPOUT;
// If registers are short, the second sum's operand replaces the first's: for sums of more columns than this.
constexpr int kColumnsWithBothOperands = 256;
constexpr bool kSharesOperands =
    kRowsAreKeys && FL_SUMS_FIRST && FL_SUMS_SECOND && FL_QK_DIM + FL_V_DIM > kColumnsWithBothOperands;
static_assert(!kSharesOperands || !kTwoFactors, "two factors need registers of their own");
// Rounded probabilities cause a visible error in d_q (docs/lessons/). Where no sum multiplies them, they are kept
// unrounded, in as many registers; otherwise their rounding error is kept.
constexpr bool kKeepsProbabilities = !kRowsAreKeys && !FL_SUMS_FIRST && !kTwoFactors;
// d_p has an accumulator of its own.
constexpr bool kDpApart = FL_D_P_APART;
static_assert(!kDpApart || kKeepsProbabilities, "registers for an accumulator of d_p");
constexpr bool kKeepsRest = !kRowsAreKeys && !kKeepsProbabilities;
constexpr bool kRestApart = kKeepsRest && kTwoFactors;  // where the second sum's operand is in use
constexpr bool kMayMask = FL_HAS_MASK_MOD || FL_REDO_ALL;
constexpr bool kGuardsAll = FL_REDO_ALL || FL_DERIVATIVE_SELECTS;  // in all tiles: multiply_gradients()
constexpr bool kCleans = kMayMask && !kRowsAreKeys;
constexpr u32 kConsumerBarrier = 1;
// Warpgroups take turns, so that each one's exponentials run beside the other's products. In a turn a warpgroup issues
// the products of a tile's scores and d_p in the fused kernel (which is slower with turns if its tiles have 128 queries),
// and in the others a tile's last sum and the scores of the next one.
constexpr bool kTakesTurns = !FL_FUSED || !kPartsOfQueries;
constexpr u32 kFirstTurnBarrier = 2;  // that of warpgroup 0, and the next

// The rounding errors of two numbers to 16 bits, in 16 bits themselves. (f16 would lose those of small numbers.)
constexpr float kRestScale = FL_BF16 ? 1.0f : 2048.0f;
__device__ __forceinline__ u32 pack_rest(u32 packed, float low, float high) {
  float rounded_low, rounded_high;
  unpack_half(packed, rounded_low, rounded_high);
  return pack_half((low - rounded_low) * kRestScale, (high - rounded_high) * kRestScale);
}

__device__ __forceinline__ void add_rest(u32 rest, float& low, float& high) {
  float rest_low, rest_high;
  unpack_half(rest, rest_low, rest_high);
  low = fmaf(rest_low, 1.0f / kRestScale, low);
  high = fmaf(rest_high, 1.0f / kRestScale, high);
}

__device__ __forceinline__ float2 load_shared_pair(u32 address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}

// Is the vote of any consumer thread yes?
__device__ __forceinline__ bool any_consumer(bool vote) {
  u32 any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, %3, p;\nselp.u32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(static_cast<int>(vote)), "n"(kConsumerBarrier), "n"(128 * kConsumers)
      : "memory");
  return any != 0;
}

// Four matrices of 8 x 8 elements of 16 bits. Lane l has the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(u32 address, const u32* matrices) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(matrices[0]),
               "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

using TilePlace = Place<kRowsAreKeys>;

// What masks: the problem's mask_mod, and what is left of it where its conditions that read captured tensors hold.
#if FL_HAS_MASK_MOD
using WholeMask = MaskTile;
#else
struct WholeMask {
  static constexpr bool kRange = true;
  static __device__ __forceinline__ QueryRange queries_of(int) { return {0, kLastQuery}; }
  struct OfQuery {};
  struct OfKey {};
  static __device__ __forceinline__ OfQuery of_query(int, int, int, const ForwardParams&) { return {}; }
  static __device__ __forceinline__ OfKey of_key(int, int, const ForwardParams&) { return {}; }
  static __device__ __forceinline__ bool value(OfQuery, OfKey, int, int, int, int, const ForwardParams&) {
    return true;
  }
};
__device__ __forceinline__ WholeMask::OfQuery from_lane(WholeMask::OfQuery x, int) { return x; }
__device__ __forceinline__ WholeMask::OfKey from_lane(WholeMask::OfKey x, int) { return x; }
#endif
#if FL_HAS_PLAIN_MASK
using PlainMask = PlainMaskTile;
#else
using PlainMask = WholeMask;
#endif

// The left operand of scores: the block's own rows.
__device__ __forceinline__ u64 row_descriptor(u32 address) {
  return kRowBoxColumns == 64 ? descriptor_k_major(address) : descriptor_narrow(address, 0);
}

struct Consumer {
  const ForwardParams& params;
  const SharedLayout& shared;
  const int warpgroup;
  int b;
  int first_row;  // of the block
  ColumnRings rings;
  bool careful = false;  // K or V of masked keys are not finite

  float s[kScores];
  float apart[kKeepsProbabilities ? kScores : 1];  // d_p if kDpApart, otherwise probabilities
  u32 p[kKeepsProbabilities ? 1 : kScores / 2];  // the left operand of the first sum
  u32 ds[kSharesOperands ? 1 : kScores / 2];  // and of the second, if it is not p
  u32 rest_apart[kRestApart ? kScores / 2 : 1];
  float first[kFirstSums];
  float second[kSecondSums];
  // Where rows are queries.
  float row_lse[2];
  float row_delta[2];
  float row_rest[2];     // sum of d_s, before the score_mod's derivative
  float row_squares[2];  // and of their squares

  // Where d_p is computed.
  __device__ __forceinline__ auto& d_p() {
    if constexpr (kDpApart) {
      return apart;
    } else {
      return s;
    }
  }

  // The left operand of the second sum.
  __device__ __forceinline__ auto& operand_of_second() {
    if constexpr (kSharesOperands) {
      return p;
    } else {
      return ds;
    }
  }

  __device__ __forceinline__ int row(int r) const {
    return first_row + 64 * warpgroup + static_cast<int>(threadIdx.x) % 128 / 32 * 16 +
           static_cast<int>(threadIdx.x) % 32 / 4 + 8 * r;
  }

  template <int kDim>
  __device__ __forceinline__ void issue_scores(float (&scores)[kScores], u64 rows, u64 columns) {
    // Descriptors count 16 bytes.
    if constexpr (kDim == FL_QK_DIM) {
      wgmma_qk<kRowBoxBytes / 16, kColumnBoxBytes / 16>(scores, rows, columns);
    } else {
      wgmma_dp<kRowBoxBytes / 16, kColumnBoxBytes / 16>(scores, rows, columns);
    }
    wgmma_commit();
  }

  template <int kCount>
  __device__ __forceinline__ void issue_sum(float (&sum)[kCount], const u32 (&factors)[kScores / 2], u64 columns,
                                            bool accumulate = true) {
    wgmma_pv(sum, factors, columns, accumulate);
    wgmma_commit();
  }

  // Statistics of the columns 8j + 2t and 8j + 2t + 1, or of the rows.
  __device__ __forceinline__ float2 column_pair(u32 statistics, int j) const {
    return load_shared_pair(statistics + 4 * (8 * j + static_cast<int>(threadIdx.x) % 4 * 2));
  }

  template <bool kPacked>
  __device__ __forceinline__ void mask_score(int i, bool keep) {
    s[i] = keep ? s[i] : 0.0f;
    if (kPacked && !keep) {
      p[i / 2] &= i % 2 == 0 ? 0xffff0000u : 0xffffu;
    }
  }

  // Calls use(i, is kept) for each score: one that is masked or outside is not. A thread has two keys: what only asks
  // whether a query is in a range takes two comparisons with constants a score.
  template <typename Use>
  __device__ __forceinline__ void for_each_score(const TilePlace& place, const QueryRange (&queries)[2],
                                                 Use use) const {
    int first[2];
    int last[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      first[r] = queries[r].first - place.column;
      last[r] = (place.rows[r] < params.kv_len ? min(queries[r].last, params.q_len - 1) : -1) - place.column;
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int offset = place.column_of(i) - place.column;
      use(i, (first[i / 2 % 2] <= offset) & (offset <= last[i / 2 % 2]));
    }
  }
  template <typename Mask, typename Use>
  __device__ __forceinline__ void for_each_score(const TilePlace& place, Use use) const {
    if constexpr (kRowsAreKeys && Mask::kRange) {
      for_each_score(place, {Mask::queries_of(place.rows[0]), Mask::queries_of(place.rows[1])}, use);
    } else {
      evaluate_each_score<Mask>(place, use);
    }
  }

  // What a mask reads for a row or a column of the tile.
  template <typename Mask>
  __device__ __forceinline__ auto values_of_row(const TilePlace& place, int row) const {
    if constexpr (kRowsAreKeys) {
      return Mask::of_key(b, row, params);
    } else {
      return Mask::of_query(b, place.h, row, params);
    }
  }
  template <typename Mask>
  __device__ __forceinline__ auto values_of_column(const TilePlace& place, int column) const {
    if constexpr (kRowsAreKeys) {
      return Mask::of_query(b, place.h, column, params);
    } else {
      return Mask::of_key(b, column, params);
    }
  }

  // A thread's columns are those of seven others, too. So each lane reads for a 32nd of the tile's columns, all at
  // once, and gets the others' from their lanes: a thread by itself has registers for two loads on their way.
  template <typename Mask, typename Use>
  __device__ __forceinline__ void evaluate_each_score(const TilePlace& place, Use use) const {
    using OfRow = decltype(values_of_row<Mask>(place, 0));
    using OfColumn = decltype(values_of_column<Mask>(place, 0));
    constexpr int kLanes = 32;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const int within = lane % 4 * 2;  // the tile's first column is so far before the thread's
    const OfRow of_row[2] = {values_of_row<Mask>(place, place.rows[0]), values_of_row<Mask>(place, place.rows[1])};
    OfColumn read[FL_BLOCK_N / kLanes];
#pragma unroll
    for (int i = 0; i < FL_BLOCK_N / kLanes; ++i) {
      read[i] = values_of_column<Mask>(place, place.column - within + kLanes * i + lane);
    }
#pragma unroll
    for (int c = 0; c < kScores / 2; ++c) {
      const int i = c / 2 * 4 + c % 2;
      const int offset = c / 2 * 8 + c % 2;
      const OfColumn of_column = from_lane(read[offset / kLanes], offset % kLanes + within);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int q = place.q(i + 2 * r);
        const int kv = place.kv(i + 2 * r);
        bool keep;
        if constexpr (kRowsAreKeys) {
          keep = Mask::value(of_column, of_row[r], b, place.h, q, kv, params);
        } else {
          keep = Mask::value(of_row[r], of_column, b, place.h, q, kv, params);
        }
        use(i + 2 * r, (q < params.q_len) & (kv < params.kv_len) & keep);
      }
    }
  }

  // A bit for each score that is kept.
  template <typename Mask>
  __device__ __forceinline__ u64 kept_scores(const TilePlace& place) const {
    u64 bits = 0;
    for_each_score<Mask>(place, [&](int i, bool keep) { bits |= static_cast<u64>(keep) << i; });
    return bits;
  }
  __device__ __forceinline__ u64 kept_scores(const TilePlace& place, bool plain) const {
    return plain ? kept_scores<PlainMask>(place) : kept_scores<WholeMask>(place);
  }

  // Scores that `bits` do not keep become 0, as mask() makes them.
  template <bool kPacked>
  __device__ __forceinline__ void keep_scores(u64 bits) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      mask_score<kPacked>(i, (bits >> i & 1) != 0);
    }
  }

  // s becomes 0 where it is masked or outside; so does p, if it has the same scores already.
  template <bool kPacked>
  __device__ __forceinline__ void mask(const TilePlace& place, bool plain) {
    const auto use = [&](int i, bool keep) { mask_score<kPacked>(i, keep); };
    if (FL_HAS_PLAIN_MASK && plain) {
      for_each_score<PlainMask>(place, use);
    } else {
      for_each_score<WholeMask>(place, use);
    }
  }

  // Products become probabilities, in s. `derivatives` of scores by the scaled products.
#if FL_HAS_SCORE_MOD
  __device__ __forceinline__ void take_exponentials(float (&derivatives)[kScores], const TilePlace& place,
                                                    u32 statistics) {
    TilePlace at = place;
#if FL_SCORE_LOADS
    // Loads must not come before the scores: ptxas would put them, with their addresses, between the products.
    at.column |= __float_as_int(s[0]) & params.zero;
#endif
#if FL_GRADIENT_SEARCHES
    // In a loop that is not unrolled: few instructions, scores in local memory.
    float scores[kScores];
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      scores[i] = s[i];
    }
#pragma unroll 1
    for (int i = 0; i < kScores; ++i) {
      scores[i] = score_at(scores[i], params, at, i, derivatives[i]);
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = scores[i];
    }
#else
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = score_at(s[i], params, at, i, derivatives[i]);
    }
#endif
    exponentials(kExponentUnit, statistics);
  }
#endif

  __device__ __forceinline__ void exponentials(float factor, u32 statistics) {
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 lse = kRowsAreKeys ? column_pair(statistics, j) : float2{};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float offset = kRowsAreKeys ? (e % 2 == 0 ? lse.x : lse.y) : row_lse[e / 2];
        s[4 * j + e] = exponential(fmaf(s[4 * j + e], factor, -offset));
      }
    }
  }

  // s becomes probabilities, and p and ds what the sums' operands are made of: p is that of the first, which stays as
  // it is while that sum runs.
  __device__ __forceinline__ void take_probabilities(const TilePlace& place, int flags, u32 undropped, u32 statistics) {
    u32(&slopes)[kScores / 2] = operand_of_second();
#if FL_HAS_SCORE_MOD
    float derivatives[kScores];
    take_exponentials(derivatives, place, statistics);
#else
    exponentials(params.scale * kExponentUnit, statistics);
#endif
    if ((flags & kPartial) != 0) {
      mask<false>(place, (flags & kPlain) != 0);
    }
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const float x[2] = {s[2 * i], s[2 * i + 1]};
      if constexpr (kKeepsProbabilities) {
        if (!kDpApart) {
          apart[2 * i] = x[0];
          apart[2 * i + 1] = x[1];
        }
      } else if constexpr (kTwoFactors) {
        float slope[2];
        float kept[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#if FL_HAS_DERIVATIVE
          slope[c] = x[c] != 0.0f ? x[c] * derivatives[2 * i + c] : 0.0f;  // what is masked changes by anything
#else
          slope[c] = x[c];
#endif
          kept[c] = FL_DROPOUT && (undropped >> (2 * i + c) & 1) == 0 ? 0.0f : x[c];
        }
        const u32 packed = pack_half(slope[0], slope[1]);
        p[i] = kRowsAreKeys ? pack_half(kept[0], kept[1]) : packed;
        slopes[i] = kRowsAreKeys ? packed : pack_half(x[0], x[1]);
        if constexpr (kKeepsRest) {
          rest_apart[i] = pack_rest(packed, slope[0], slope[1]);
        }
      } else {
        p[i] = pack_half(x[0], x[1]);
        if constexpr (kKeepsRest) {
          (kRestApart ? rest_apart : slopes)[i] = pack_rest(p[i], x[0], x[1]);  // ds is free until d_s are there
        }
      }
    }
  }

  // s is d_p; ds becomes the second sum's operand. kGuards: what has no probability, or what a select leaves
  // out, may have any d_p and any delta.
  template <bool kGuards>
  __device__ __forceinline__ void multiply_gradients(u32 undropped, u32 deltas) {
    u32(&slopes)[kScores / 2] = operand_of_second();
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 delta = kRowsAreKeys ? column_pair(deltas, j) : float2{};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = 2 * j + r;
        float slope[2];
        if constexpr (kKeepsProbabilities) {
          slope[0] = kDpApart ? s[2 * i] : apart[2 * i];
          slope[1] = kDpApart ? s[2 * i + 1] : apart[2 * i + 1];
        } else {
          unpack_half(kTwoFactors && kRowsAreKeys ? slopes[i] : p[i], slope[0], slope[1]);
        }
        if constexpr (kKeepsRest) {
          add_rest((kRestApart ? rest_apart : slopes)[i], slope[0], slope[1]);
        }
        float probability[2] = {slope[0], slope[1]};
        if (kTwoFactors && !kRowsAreKeys) {
          unpack_half(slopes[i], probability[0], probability[1]);
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float change_by_p = d_p()[2 * i + c];
#if FL_DROPOUT
          change_by_p = undropped >> (2 * i + c) & 1 ? change_by_p * params.dropout_factor : 0.0f;
#endif
          change_by_p -= kRowsAreKeys ? (c == 0 ? delta.x : delta.y) : row_delta[r];
          slope[c] = !kGuards || slope[c] != 0.0f ? slope[c] * change_by_p : 0.0f;
          if (!kRowsAreKeys) {
            float change = slope[c];
            if (kTwoFactors) {
              change = !kGuards || probability[c] != 0.0f ? probability[c] * change_by_p : 0.0f;
            }
            row_rest[r] += change;
            row_squares[r] = FL_SUMS_FIRST ? 0.0f : fmaf(change, change, row_squares[r]);
          }
        }
        slopes[i] = pack_half(slope[0], slope[1]);
      }
    }
  }

  __device__ __forceinline__ void take_gradients(bool masks, u32 undropped, u32 deltas) {
    if (kGuardsAll || (kMayMask && masks)) {
      multiply_gradients<true>(undropped, deltas);
    } else {
      multiply_gradients<false>(undropped, deltas);
    }
  }

  // Puts 0 in place of what is not finite: a masked key's gradient is 0 and must stay so, and that of a kept one is NaN
  // already, from its score.
  __device__ __forceinline__ void clean(u32 tile) {
    named_barrier_sync(kConsumerBarrier, 128 * kConsumers);  // all have their scores
#pragma unroll 1
    for (u32 at = tile + 4 * (threadIdx.x - 128); at < tile + kColumnQkBytes; at += 4 * 128 * kConsumers) {
      u32 pair = static_cast<u32>(load_shared(at));
      float low, high;
      unpack_half(pair, low, high);
      pair &= (fabsf(low) < FL_INFINITY ? 0xffffu : 0u) | (fabsf(high) < FL_INFINITY ? 0xffff0000u : 0u);
      store_shared(at, static_cast<int>(pair));
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    named_barrier_sync(kConsumerBarrier, 128 * kConsumers);
  }

  // Once, before all column tiles: the first turn is warpgroup 0's. Both have equally many turns.
  __device__ __forceinline__ void start() const {
    if (warpgroup == 1) {
      pass_turn();
    }
  }
  __device__ __forceinline__ void wait_for_turn() const {
    if (kTakesTurns) {
      named_barrier_sync(kFirstTurnBarrier + warpgroup, 128 * kConsumers);
    }
  }
  __device__ __forceinline__ void pass_turn() const {
    if (kTakesTurns) {
      named_barrier_arrive(kFirstTurnBarrier + (warpgroup ^ 1), 128 * kConsumers);
    }
  }

  // All column tiles. Products in a branch make ptxas serialise all of them, so every round has all of them.
  __device__ __forceinline__ void sweep() {
#pragma unroll
    for (int i = 0; i < kFirstSums; ++i) {
      first[i] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kSecondSums; ++i) {
      second[i] = 0.0f;
    }
    row_rest[0] = row_rest[1] = 0.0f;
    row_squares[0] = row_squares[1] = 0.0f;
    u64 rows_qk = descriptor_k_major(shared.rows_qk + warpgroup * kRowQkBytes);
    pin(rows_qk);
    u32 previous = kNone;  // the stage whose last sum runs
    int flags;
#pragma unroll 1
    do {
      const u32 qk = shared.columns_qk + rings.qk.stage() * kColumnQkBytes;
      const u32 v = shared.columns_v + rings.v_stage() * kColumnVBytes;
      const u32 fields = shared.fields + 4 * kFieldCount * rings.qk.stage();
      const u32 statistics = shared.statistics + rings.qk.stage() * kStatisticsBytes;
      barrier_wait(shared.qk_full + 8 * rings.qk.stage(), rings.qk.phase());
      if (previous == kNone) {
        wait_for_turn();
      }
      pin(s);
      wgmma_fence();
      issue_scores<FL_QK_DIM>(s, rows_qk, descriptor_k_major(qk));
      // (Of as many columns as rows_qk, these lie at a distance that is known: no registers.)
      const u64 rows_v = kRowVBytes == kRowQkBytes ? rows_qk + kConsumers * kRowQkBytes / 16
                                                   : descriptor_k_major(shared.rows_v + warpgroup * kRowVBytes);
      if constexpr (kDpApart) {
        barrier_wait(shared.v_full + 8 * rings.v_stage(), rings.v_phase());
        wgmma_fence();
        issue_scores<FL_V_DIM>(d_p(), rows_v, descriptor_k_major(v));
      }
      pass_turn();
      flags = load_shared_once(fields + 4 * kFieldFlags);
      const TilePlace place{b,
                            load_shared_once(fields + 4 * kFieldHead),
                            {row(0), row(1)},
                            load_shared_once(fields + 4 * kFieldFirst) + static_cast<int>(threadIdx.x) % 4 * 2};
      wgmma_wait<kDpApart ? 2 : 1>();
      finish_last_sum(previous);
#if FL_DROPOUT
      const u32 undropped = undropped_bits<kScores>(params, place);
#else
      constexpr u32 undropped = 0xffffffff;
#endif
      wgmma_wait<kDpApart ? 1 : 0>();
      pin(s);
      if (kRowsAreKeys && (flags & kLast) != 0) {
        release(shared.rows_empty);  // the next tile's K may come
      }
      if (kCleans && careful) {
        clean(qk);
      }
      const bool partial = (flags & kPartial) != 0;
      take_probabilities(place, flags, undropped, statistics);
#if FL_SUMS_SECOND
      if constexpr (kDpApart) {
        wgmma_wait<0>();
        pin(d_p());
      } else {
        barrier_wait(shared.v_full + 8 * rings.v_stage(), rings.v_phase());
        pin(s);
        pin(p);
        pin(apart);
        pin(first);
        wgmma_fence();
        issue_scores<FL_V_DIM>(s, rows_v, descriptor_k_major(v));
#if FL_SUMS_FIRST
        issue_sum(first, p, descriptor_n_major(kRowsAreKeys ? v : qk, kColumnBoxBytes));
#endif
        wgmma_wait<FL_SUMS_FIRST && !kSharesOperands ? 1 : 0>();
        pin(s);
      }
      if constexpr (kSharesOperands) {
        pin(first);
        pin(p);
      }
      if constexpr (kSharesOperands || !FL_SUMS_FIRST) {
        release(shared.v_empty + 8 * rings.v_stage());
      }
      take_gradients(partial, undropped, statistics + 4 * FL_BLOCK_N);
      wait_for_turn();
      pin(operand_of_second());
      pin(second);
      wgmma_fence();
      issue_sum(second, operand_of_second(), descriptor_n_major(qk, kColumnBoxBytes));
      if ((flags & kLast) != 0) {
        pass_turn();
      }
      if constexpr (FL_SUMS_FIRST && !kSharesOperands) {
        wgmma_wait<1>();
        pin(first);
        pin(p);
        release(shared.v_empty + 8 * rings.v_stage());
      }
      previous = rings.qk.stage();
#else
      barrier_wait(shared.v_full + 8 * rings.v_stage(), rings.v_phase());
      release_qk(rings.qk.stage());
      wait_for_turn();
      pin(p);
      pin(first);
      wgmma_fence();
      issue_sum(first, p, descriptor_n_major(v, kColumnBoxBytes));
      if ((flags & kLast) != 0) {
        pass_turn();
      }
      previous = rings.v_stage();
#endif
      rings.advance();
    } while ((flags & kLast) == 0);
    wgmma_wait<0>();
    finish_last_sum(previous);
  }

  static constexpr u32 kNone = 1 << 16;

  __device__ __forceinline__ void release_qk(u32 stage) const {
    const u32 empty = shared.qk_empty + 8 * stage;
    if constexpr (kQkReaders == 128 * kConsumers) {
      barrier_arrive(empty);
    } else {
      release(empty);
    }
  }

  __device__ __forceinline__ void finish_last_sum(u32 stage) {
#if FL_SUMS_SECOND
    pin(second);
    pin(operand_of_second());
    if (stage != kNone) {
      release_qk(stage);
    }
#else
    pin(first);
    pin(p);
    if (stage != kNone) {
      release(shared.v_empty + 8 * stage);
    }
#endif
  }
};

}  // namespace flashlift::cuda
