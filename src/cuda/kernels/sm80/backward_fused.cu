// The portable backward kernel that computes all gradients with five products, for 16-bit inputs. One block processes a
// tile of keys, and iterates over the query tiles that see it. d_k and d_v stay in registers. Each block adds its part
// of d_q to f32 sums in memory, in the order of the key tiles (backward_visits.cuh), so that the sums have the same
// bits in every run. A second kernel scales and rounds them.
//
// Probabilities and d_s are in shared memory, where their columns become rows of operands. A warp therefore has 32 rows
// of each product, and uses each matrix that it loads from shared memory for two fragments. With 16 rows per warp,
// these loads limit the speed.
#include "cuda/kernels/common/gradients.cuh"
#include "cuda/kernels/sm80/backward_visits.cuh"
#include "cuda/kernels/sm80/fragments.cuh"

namespace flashlift::cuda {
namespace {

// FL_BLOCK_M queries and FL_BLOCK_N keys.
constexpr int kWarps = FL_WARPS;
constexpr int kThreads = 32 * kWarps;
constexpr int kFragments = 2;
constexpr int kWarpRows = 16 * kFragments;
constexpr int kStages = FL_STAGES;            // of Q
constexpr int kDOutStages = FL_D_OUT_STAGES;  // no more than of Q
constexpr int kQueryWarps = FL_BLOCK_M / kWarpRows;  // that share the keys of scores, or the columns of d_q
constexpr int kKeyWarps = FL_BLOCK_N / kWarpRows;    // that share the columns of d_k and d_v
constexpr int kScoreKeys = FL_BLOCK_N * kQueryWarps / kWarps;  // of a warp
constexpr int kKeyColumnWarps = kWarps / kKeyWarps;            // among which the columns of d_k and d_v are divided
constexpr int kQueryColumnWarps = kWarps / kQueryWarps;        // and those of d_q
static_assert(kWarps % kQueryWarps == 0 && kWarps % kKeyWarps == 0 && kScoreKeys % 16 == 0, "whole tiles for all warps");

using QTile = PanelTile<FL_BLOCK_M, FL_QK_DIM>;
using DOutTile = PanelTile<FL_BLOCK_M, FL_V_DIM>;
using KTile = PanelTile<FL_BLOCK_N, FL_QK_DIM>;
using VTile = PanelTile<FL_BLOCK_N, FL_V_DIM>;
using ProbabilityTile = PanelTile<FL_BLOCK_M, FL_BLOCK_N>;

constexpr int kScores = kScoreKeys / 2;  // of a thread's fragment
using Scores = float[kFragments][kScores];
// Parts of a warp's keys: registers do not suffice for d_p of 64 keys beside the scores and wide sums.
constexpr int kDpParts = kScoreKeys == 64 && FL_QK_DIM + FL_V_DIM > 128 ? 2 : 1;
constexpr int kDpScores = kScores / kDpParts;
using KeyValueSums = float[kFragments][FL_V_DIM / kKeyColumnWarps / 2];
using KeySums = float[kFragments][FL_QK_DIM / kKeyColumnWarps / 2];
using QuerySums = float[kFragments][FL_QK_DIM / kQueryColumnWarps / 2];
constexpr int kQuerySums = kFragments * FL_QK_DIM / kQueryColumnWarps / 2;

// Additions to d_q wait in the queue through which matrices are loaded from shared memory. With two stages they therefore
// come one by one between the products of d_k.
constexpr bool kSpreadsAdditions = kStages > 1;

constexpr bool kMayMask = FL_HAS_MASK_MOD || FL_REDO_ALL;
constexpr bool kGuardsAll = FL_REDO_ALL || FL_DERIVATIVE_SELECTS;  // in all tiles: multiply_slopes()
constexpr bool kTwoFactors = FL_HAS_DERIVATIVE || FL_DROPOUT;

struct SharedLayout {
  u32 k, v, q, d_out, p, ds;
  unsigned char* visits;
};
constexpr int kSharedBytes = KTile::kBytes + VTile::kBytes + kStages * QTile::kBytes + kDOutStages * DOutTile::kBytes +
                             2 * ProbabilityTile::kBytes + KeyVisits::kBytes;
static_assert(kSharedBytes <= FL_SHARED_BYTES, "the host reserves less shared memory than the kernel uses");

// The position of a part of d_q among the sums of its tile: elements of neighbouring threads are neighbours. `i`: the
// first of four elements of a thread.
#if __CUDA_ARCH__ >= 900
constexpr int kTogether = 4;  // elements that one instruction adds
#else
constexpr int kTogether = 1;
#endif
__device__ __forceinline__ int sum_place(int i) {
  return i / kTogether * (kThreads * kTogether) + static_cast<int>(threadIdx.x) * kTogether + i % kTogether;
}

// Adds four elements to their sums; the first part of all is stored. In one statement: ptxas makes it a branch around the
// addition, which stays where it is, whereas it moves an addition without a branch before all products.
__device__ __forceinline__ void add_sums(float* sums, bool first, const float* x) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred first;\nsetp.ne.s32 first, %5, 0;\n"
      "@first st.global.v4.f32 [%0], {%1, %2, %3, %4};\n"
      "@!first red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n}" ::"l"(sums),
      "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(static_cast<int>(first))
      : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    asm volatile(
        "{\n.reg .pred first;\nsetp.ne.s32 first, %2, 0;\n"
        "@first st.global.f32 [%0], %1;\n"
        "@!first red.relaxed.gpu.global.add.f32 [%0], %1;\n}" ::"l"(sums + i * kThreads),
        "f"(x[i]), "r"(static_cast<int>(first))
        : "memory");
  }
#endif
}

// Of a thread's rows: lse, or delta.
struct RowValues {
  float of[kFragments][2];
};

// Of the tile of queries whose values begin at `values`. What is loaded comes at once, and is not waited for before it is
// used: volatile, since the compiler would load it where it is used.
__device__ __forceinline__ RowValues load_row_values(const float* values) {
  RowValues rows;
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      asm volatile("ld.global.f32 %0, [%1];" : "=f"(rows.of[f][r]) : "l"(values + 16 * f + 8 * r) : "memory");
    }
  }
  return rows;
}

// Which key tile has added to a part of d_q last, plus one.
__device__ __forceinline__ int last_adder(const int* place) {
  int last;
  asm volatile("ld.relaxed.gpu.s32 %0, [%1];" : "=r"(last) : "l"(place) : "memory");
  return last;
}

__device__ __forceinline__ bool has_nonfinite_half(u32 pair) {
  constexpr u32 kExponent = FL_BF16 ? 0x7f80 : 0x7c00;
  return (pair & kExponent) == kExponent || (pair >> 16 & kExponent) == kExponent;
}

// Is any element of a tile not finite? Called by all threads.
__device__ __forceinline__ bool any_nonfinite(u32 tile, int bytes) {
  bool found = false;
#pragma unroll 1
  for (int at = 4 * threadIdx.x; at < bytes; at += 4 * kThreads) {
    found |= has_nonfinite_half(load_shared(tile + at));
  }
  return __syncthreads_or(found);
}

// Puts 0 in place of what is not finite.
__device__ __forceinline__ void clean(u32 tile, int bytes) {
  constexpr u32 kExponent = FL_BF16 ? 0x7f80 : 0x7c00;
#pragma unroll 1
  for (int at = 4 * threadIdx.x; at < bytes; at += 4 * kThreads) {
    u32 pair = load_shared(tile + at);
    pair &= (pair & kExponent) == kExponent ? 0xffff0000u : 0xffffffffu;
    pair &= (pair >> 16 & kExponent) == kExponent ? 0xffffu : 0xffffffffu;
    store_shared(tile + at, static_cast<int>(pair));
  }
}

// A thread's place in its warp's part of the scores.
struct ScorePart {
  int row;  // of the first fragment's first row, in the tile
  int key;  // of the first key
  __device__ __forceinline__ ScorePart() {
    const int thread = static_cast<int>(opaque(threadIdx.x));
    row = thread / 32 % kQueryWarps * kWarpRows + thread % 32 / 4;
    key = thread / 32 / kQueryWarps * kScoreKeys + thread % 4 * 2;
  }
};

// Of a chunk in a row of a tile of scores: the one of a key, or the one after.
__device__ __forceinline__ u32 score_address(u32 tile, u32 row, u32 key, u32 after) {
  return FL_BLOCK_N >= 64
             ? tile + key / 64 * (FL_BLOCK_M * 128) + chunk_offset<64>(row, key % 64 / kChunkElements + after)
             : tile + chunk_offset<32>(row, key / kChunkElements + after);
}

// Packed pairs of a fragment, or of a part of its keys, into a tile of scores. Stores wait in the same queue as loads of
// matrices: where one instruction stores four matrices, the queue is shorter.
template <int kPairs>
__device__ __forceinline__ void store_scores(u32 tile, int fragment, const u32 (&pairs)[kPairs], int part = 0) {
  const int before = part * kPairs / 4;
#if __CUDA_ARCH__ >= 900
  const u32 thread = opaque(threadIdx.x);
  const u32 row = thread / 32 % kQueryWarps * kWarpRows + thread % 16 + 16 * fragment;
  const u32 address = score_address(tile, row, thread / 32 / kQueryWarps * kScoreKeys, thread % 32 / 16);
#pragma unroll
  for (int j = 0; j < kPairs / 4; ++j) {
    store_matrices(address ^ ((before + j) * 32), pairs + 4 * j);
  }
#else
  const ScorePart own;
  const u32 key = own.key;
  const u32 address = score_address(tile, own.row, key, 0);
  constexpr int kRowBytes = FL_BLOCK_N >= 64 ? 128 : 64;
#pragma unroll
  for (int j = 0; j < kPairs / 2; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      store_shared((address ^ ((2 * before + j) * 16)) + key % 8 * 2 + (16 * fragment + 8 * r) * kRowBytes,
                   static_cast<int>(pairs[2 * j + r]));
    }
  }
#endif
}

using TilePlace = Place<false>;

__device__ __forceinline__ TilePlace place_of(const KeyTile& keys, const QueryVisit& visit, int fragment) {
  const ScorePart part;
  const int row = visit.q + part.row + 16 * fragment;
  return {keys.b, visit.h, {row, row + 8}, keys.first + part.key};
}

// Bit i: does dropout leave element i of a fragment.
struct Undropped {
  u32 bits[kFragments];
};

// Products in s become probabilities times what the score changes by as the product does; `pairs`: the probabilities
// that d_v is made of.
__device__ __forceinline__ void take_slopes(float (&s)[kScores], u32 (&pairs)[kScores / 2], const ForwardParams& params,
                                            const TilePlace& place, bool partial, u32 undropped, const float (&lse)[2]) {
  float p[kScores];
#if FL_HAS_SCORE_MOD && FL_GRADIENT_SEARCHES
  // In a loop that is not unrolled: few instructions, scores in local memory.
  float scores[kScores];
  float derivatives[kScores];
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    scores[i] = s[i];
  }
#pragma unroll 1
  for (int i = 0; i < kScores; ++i) {
    scores[i] = score_at(scores[i], params, place, i, derivatives[i]);
  }
#endif
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const float offset = lse[i / 2 % 2];
#if !FL_HAS_SCORE_MOD
    p[i] = exponential(fmaf(s[i], params.scale * kExponentUnit, -offset));
#else
#if FL_GRADIENT_SEARCHES
    const float score = scores[i];
    const float derivative = derivatives[i];
#else
    float derivative;
    const float score = score_at(s[i], params, place, i, derivative);
#endif
    p[i] = exponential(fmaf(score, kExponentUnit, -offset));
#endif
#if FL_HAS_DERIVATIVE
    s[i] = p[i] != 0.0f ? p[i] * derivative : 0.0f;  // what is masked changes by anything
#else
    s[i] = p[i];
#endif
  }
  if (partial) {
    const u32 kept = kept_bits<kScores>(params, place, true);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      p[i] = kept >> i & 1 ? p[i] : 0.0f;
      s[i] = kept >> i & 1 ? s[i] : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) {
    const bool first = !FL_DROPOUT || (undropped >> (2 * i) & 1) != 0;
    const bool second = !FL_DROPOUT || (undropped >> (2 * i + 1) & 1) != 0;
    pairs[i] = pack_half(first ? p[2 * i] : 0.0f, second ? p[2 * i + 1] : 0.0f);
  }
}

// d_s of a part of a fragment's keys, packed. kGuards: what has no probability, or what a select leaves out, may have any
// d_p and any delta.
template <bool kGuards>
__device__ __forceinline__ void multiply_slopes(const float (&s)[kScores], const float (&d_p)[kDpScores], int part,
                                                u32 (&pairs)[kDpScores / 2], const ForwardParams& params, u32 undropped,
                                                const float (&delta)[2]) {
#pragma unroll
  for (int i = 0; i < kDpScores / 2; ++i) {
    float d_s[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int e = part * kDpScores + 2 * i + c;
      float x = d_p[2 * i + c];
#if FL_DROPOUT
      x = undropped >> e & 1 ? x * params.dropout_factor : 0.0f;
#endif
      x -= delta[i % 2];
      d_s[c] = !kGuards || s[e] != 0.0f ? s[e] * x : 0.0f;
    }
    pairs[i] = pack_half(d_s[0], d_s[1]);
  }
}

// A thread's sums of columns into a gradient. kColumnWarps: as in RightColumns. rows: of the first row, in the tensor;
// `count`: rows that there are.
template <int kColumnWarps, int kCount>
__device__ __forceinline__ void store_gradients(const float (&sums)[kFragments][kCount], int column_warp, float factor,
                                                InputElement* head, const Strides& strides, bool paired, int first_row,
                                                int count, int columns) {
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + 16 * f + 8 * r;
      if (row >= count) {
        continue;
      }
#pragma unroll
      for (int pair = 0; pair < kCount / 8; ++pair) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          x[i] = sums[f][8 * pair + i];
        }
        store_gradient_row(x, r, factor, head + row * strides.row, strides.column, paired,
                           16 * (kColumnWarps * pair + column_warp), columns);
      }
      if constexpr (kCount % 8 != 0) {
        const float x[4] = {sums[f][kCount - 4], sums[f][kCount - 3], sums[f][kCount - 2], sums[f][kCount - 1]};
        store_gradient_row(x, r, factor, head + row * strides.row, strides.column, paired,
                           16 * kColumnWarps * (kCount / 8) + 8 * column_warp, columns);
      }
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, FL_BLOCKS)
    flashlift_backward_fused(const __grid_constant__ ForwardParams params,
                             const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles) {
  if (others_run(backward, tiles)) {
    return;
  }
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  SharedLayout shared;
  shared.k = shared_address(shared_memory);
  shared.v = shared.k + KTile::kBytes;
  shared.p = shared.v + VTile::kBytes;
  shared.ds = shared.p + ProbabilityTile::kBytes;
  shared.q = shared.ds + ProbabilityTile::kBytes;
  shared.d_out = shared.q + kStages * QTile::kBytes;
  shared.visits = shared_memory + (shared.d_out + kDOutStages * DOutTile::kBytes - shared.k);

  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    // Blocks count in the order in which they start.
    store_shared(shared.p, atomicAdd(tiles.next_block, 1));
  }
  __syncthreads();
  const KeyTile keys = key_tile<FL_BLOCK_N>(params, backward, load_shared(shared.p));
  KeyVisits visits(params, backward, tiles, keys, shared.visits);

  const auto load_keys = [&] {
    const HeadRows head = {params.k, params.k_strides, FL_HEAD_DIM, params.vector_k != 0, keys.b, keys.kv_head};
    copy_keys<kThreads, FL_BLOCK_N, FL_QK_DIM>(shared.k, head, head.first(params), params, keys.first);
  };
  const auto load_q = [&](const QueryVisit& visit, int stage) {
    const TileRows q_rows = {visit.q_rows,          params.q_strides.row, params.q_strides.column,
                             params.q_len - visit.q, FL_HEAD_DIM,          params.vector_q != 0};
    copy_tile<kThreads, FL_BLOCK_M, FL_QK_DIM>(shared.q + stage * QTile::kBytes, q_rows);
  };
  const auto load_d_out = [&](const QueryVisit& visit, int stage) {
    const Strides& strides = backward.d_out_strides;
    const TileRows d_out_rows = {visit.d_out_rows,      strides.row,    strides.column,
                                 params.q_len - visit.q, FL_VALUE_DIM, backward.vector_d_out != 0};
    copy_tile<kThreads, FL_BLOCK_M, FL_V_DIM>(shared.d_out + stage * DOutTile::kBytes, d_out_rows);
  };

  load_keys();
  const HeadRows values = {params.v, params.v_strides, FL_VALUE_DIM, params.vector_v != 0, keys.b, keys.kv_head};
  copy_keys<kThreads, FL_BLOCK_N, FL_V_DIM>(shared.v, values, values.first(params), params, keys.first);
  if (warp == 0) {
    visits.advance(0);
    if (kStages > 1 && visits.visit(0).h >= 0) {
      visits.advance(1);
    }
  }
  __syncthreads();
  if (visits.visit(0).h >= 0) {
    load_q(visits.visit(0), 0);
    load_d_out(visits.visit(0), 0);
  }
  copy_commit();
  copy_wait<0>();
  // A key that no query may see, but whose elements are not finite, would make 0 * inf of d_s * k.
  bool careful = false;
  if constexpr (kMayMask) {
    __syncthreads();
    careful = any_nonfinite(shared.k, KTile::kBytes);
  }

  KeyValueSums d_v;
  KeySums d_k;
  clear(d_v);
  clear(d_k);
  // Behind a barrier that comes after all threads have added.
  const auto release = [&](const QueryVisit& of) {
    asm volatile("st.release.gpu.s32 [%0], %1;" ::"l"(tiles.last_adders + of.place), "r"(keys.index + 1) : "memory");
  };
  const auto multiply_d_q = [&](QuerySums& d_q) {
    clear(d_q);
    const u32 thread_warp = opaque(threadIdx.x) / 32;
    multiply<FL_BLOCK_N / 16>(d_q, LeftRows<ProbabilityTile>(shared.ds, thread_warp % kQueryWarps * kWarpRows),
                              RightColumns<KTile, kQueryColumnWarps>(shared.k, thread_warp / kQueryWarps));
  };
  // Waits for the block's turn to add to d_q. last: the last adder, as it was.
  const auto wait_for_turn = [&](const QueryVisit& visit, int last) {
    const int before = visit.before;
    // What was added before the adder told of it is in memory: an addition that is begun now comes after it.
    while (before >= 0 && last != before + 1) {
      last = last_adder(tiles.last_adders + visit.place);
    }
  };
#pragma unroll 1
  for (int round = 0; visits.visit(round).h >= 0; ++round) {
    const QueryVisit& visit = visits.visit(round);  // of which every use is read anew: registers are short
    const u32 stage = kStages > 1 ? round % kStages : 0;
    const u32 q = shared.q + stage * QTile::kBytes;
    const u32 d_out = shared.d_out + (kDOutStages > 1 ? stage : 0) * DOutTile::kBytes;
    copy_wait<0>();
    __syncthreads();  // this tile is there, and all warps have done with the last one
    if (warp == 0) {
      if (kStages == 1 || visits.visit(round + 1).h >= 0) {
        visits.advance(round + kStages);
      }
    } else if (warp == 1 && round > 0 && threadIdx.x % 32 == 0) {
      release(visits.visit(round - 1));
    }
    if (kStages > 1) {
      const QueryVisit& next = visits.visit(round + 1);
      if (next.h >= 0) {
        load_q(next, (round + 1) % kStages);
        if (kDOutStages > 1) {
          load_d_out(next, (round + 1) % kStages);
        }
      }
      copy_commit();
    }
    const float* const statistics = tiles.statistics + visit.place * (2 * FL_BLOCK_M) + ScorePart().row;
    Scores s;
    Undropped undropped;
    const RowValues lse = load_row_values(statistics);
    {
      const u32 thread_warp = opaque(threadIdx.x) / 32;
      const u32 first_row = thread_warp % kQueryWarps * kWarpRows;
      const u32 first_key = thread_warp / kQueryWarps * kScoreKeys;
      clear(s);
      multiply<FL_QK_DIM / 16>(s, LeftRows<QTile>(q, first_row), RightRows<KTile>(shared.k, first_key));
    }
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const TilePlace at = place_of(keys, visit, f);
#if FL_DROPOUT
      undropped.bits[f] = undropped_bits<kScores>(params, at);
#else
      undropped.bits[f] = 0xffffffff;
#endif
      u32 pairs[kScores / 2];
      take_slopes(s[f], pairs, params, at, visit.partial != 0, undropped.bits[f], lse.of[f]);
      store_scores(shared.p, f, pairs);
    }
    const RowValues delta = load_row_values(statistics + FL_BLOCK_M);
#pragma unroll
    for (int part = 0; part < kDpParts; ++part) {
      float d_p[kFragments][kDpScores];
      const u32 thread_warp = opaque(threadIdx.x) / 32;
      const u32 first_row = thread_warp % kQueryWarps * kWarpRows;
      const u32 first_key = thread_warp / kQueryWarps * kScoreKeys + part * (kScoreKeys / kDpParts);
      clear(d_p);
      multiply<FL_V_DIM / 16>(d_p, LeftRows<DOutTile>(d_out, first_row), RightRows<VTile>(shared.v, first_key));
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
        u32 pairs[kDpScores / 2];
        if (kGuardsAll || (kMayMask && visit.partial != 0)) {
          multiply_slopes<true>(s[f], d_p[f], part, pairs, params, undropped.bits[f], delta.of[f]);
        } else {
          multiply_slopes<false>(s[f], d_p[f], part, pairs, params, undropped.bits[f], delta.of[f]);
        }
        store_scores(shared.ds, f, pairs, part);
      }
    }
    const int last = last_adder(tiles.last_adders + visit.place);  // needed after two products
    __syncthreads();  // all probabilities and d_s are there
    const u32 product_warp = opaque(threadIdx.x) / 32;
    const u32 first_key = product_warp % kKeyWarps * kWarpRows;
    const u32 key_column = product_warp / kKeyWarps;
    const auto multiply_d_v = [&] {
      multiply<FL_BLOCK_M / 16>(d_v, LeftColumns<ProbabilityTile>(shared.p, first_key),
                                RightColumns<DOutTile, kKeyColumnWarps>(d_out, key_column));
    };
    QuerySums d_q;
    const auto take_turn = [&] {
      if (careful) {
        __syncthreads();
        clean(shared.k, KTile::kBytes);
        __syncthreads();
      }
      multiply_d_q(d_q);
      if (careful) {
        __syncthreads();
        load_keys();
        copy_commit();
      }
      wait_for_turn(visit, last);
    };
    constexpr int kAdditions = kQuerySums / 4;  // of a thread, each of four elements
    const auto add_d_q = [&](float* sums, bool first, int addition) {
      constexpr int kHalf = kQuerySums / kFragments;
      const int i = 4 * addition;
      add_sums(sums + sum_place(i), first, d_q[i / kHalf] + i % kHalf);
    };
    if (kSpreadsAdditions) {
      multiply_d_v();
      if (kDOutStages == 1) {
        __syncthreads();  // all warps have done with this tile's d_out
        const QueryVisit& next = visits.visit(round + 1);
        if (next.h >= 0) {
          load_d_out(next, 0);
        }
        copy_commit();
      }
      take_turn();
      float* const sums = tiles.d_q_sums + visit.place * (FL_BLOCK_M * FL_QK_DIM);
      const bool first = visit.before < 0;
      constexpr int kPlaces = FL_BLOCK_M / 16 * (FL_QK_DIM / kKeyColumnWarps / 16);
      const auto add_between = [&](int place) {
#pragma unroll
        for (int i = place * kAdditions / kPlaces; i < (place + 1) * kAdditions / kPlaces; ++i) {
          add_d_q(sums, first, i);
        }
      };
      multiply<FL_BLOCK_M / 16>(d_k, LeftColumns<ProbabilityTile>(shared.ds, first_key),
                                RightColumns<QTile, kKeyColumnWarps>(q, key_column), add_between);
    } else {
      multiply_d_v();
      multiply<FL_BLOCK_M / 16>(d_k, LeftColumns<ProbabilityTile>(shared.ds, first_key),
                                RightColumns<QTile, kKeyColumnWarps>(q, key_column));
      __syncthreads();  // all warps have done with this tile's queries
      const QueryVisit& next = visits.visit(round + 1);
      if (next.h >= 0) {
        load_q(next, 0);
        load_d_out(next, 0);
      }
      copy_commit();
      take_turn();
      float* const sums = tiles.d_q_sums + visit.place * (FL_BLOCK_M * FL_QK_DIM);
      const bool first = visit.before < 0;
#pragma unroll
      for (int i = 0; i < kAdditions; ++i) {
        add_d_q(sums, first, i);
      }
    }
    if (visits.visit(round + 1).h < 0) {
      __syncthreads();
      if (threadIdx.x == 0) {
        release(visit);
      }
    }
  }
  copy_wait<0>();  // of a block that visits no tile
  const int thread_warp = static_cast<int>(threadIdx.x) / 32;
  const int first_key = keys.first + thread_warp % kKeyWarps * kWarpRows + static_cast<int>(threadIdx.x) % 32 / 4;
  const auto head = [&](void* tensor, const Strides& strides) {
    return static_cast<InputElement*>(tensor) + keys.b * strides.batch + keys.kv_head * strides.head;
  };
  if (backward.d_k != nullptr) {
    store_gradients<kKeyColumnWarps>(d_k, thread_warp / kKeyWarps, params.scale, head(backward.d_k, backward.d_k_strides),
                                     backward.d_k_strides, backward.paired_d_k, first_key, params.kv_len, FL_HEAD_DIM);
  }
  if (backward.d_v != nullptr) {
    store_gradients<kKeyColumnWarps>(d_v, thread_warp / kKeyWarps, params.dropout_factor,
                                     head(backward.d_v, backward.d_v_strides), backward.d_v_strides,
                                     backward.paired_d_v, first_key, params.kv_len, FL_VALUE_DIM);
  }
}

// A block for each tile of queries: d_q from its sums, or zeros where no key has been seen.
extern "C" __global__ void __launch_bounds__(kThreads)
    flashlift_backward_round(const __grid_constant__ ForwardParams params,
                             const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles) {
  const int place = blockIdx.x;
  const int head = place / tiles.tiles;
  const int first = place % tiles.tiles * FL_BLOCK_M;
  if (others_run(backward, tiles) || first >= params.q_len) {
    return;
  }
  const bool seen = tiles.last_adders[place] != 0;
  const float* const sums = tiles.d_q_sums + static_cast<long long>(place) * (FL_BLOCK_M * FL_QK_DIM);
  QuerySums x;
  constexpr int kHalf = kQuerySums / kFragments;
#pragma unroll
  for (int i = 0; i < kQuerySums; ++i) {
    x[i / kHalf][i % kHalf] = seen ? sums[sum_place(i)] : 0.0f;
  }
  const Strides& strides = backward.d_q_strides;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  store_gradients<kQueryColumnWarps>(
      x, warp / kQueryWarps, params.scale,
      static_cast<InputElement*>(backward.d_q) + head / params.q_heads * strides.batch + head % params.q_heads * strides.head,
      strides, backward.paired_d_q, first + warp % kQueryWarps * kWarpRows + static_cast<int>(threadIdx.x) % 32 / 4,
      params.q_len, FL_HEAD_DIM);
}

}  // namespace flashlift::cuda
