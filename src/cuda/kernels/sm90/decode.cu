// The forward kernel for few queries and many keys, with bulk copies: from sm_90 on, for 16-bit tensors.
//
// A separate warp issues the copies ahead of the warps that multiply. When the multiplying warps issued a tile's copies
// themselves, 16 bytes at a time, this took them longer than the memory needs to deliver the tile (docs/lessons).
#include "bounds.cuh"
#include "cuda/kernels/sm80/decode.cuh"
#include "cuda/kernels/sm90/copies.cuh"

namespace flashlift::cuda {

static_assert(kKElements * 2 == kKBytes && kVElements * 2 == kVBytes, "tiles of keys and values are boxes");

struct Ring {
  u32 k, v;
  u32 full, empty;  // a barrier a stage

  __device__ __forceinline__ void init(int stages) const {
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(full + 8 * stage, 1);
      barrier_init(empty + 8 * stage, kWarps);
    }
    barrier_init_fence();
  }
};

struct Position {
  int stage = 0;
  u32 phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

__device__ __forceinline__ void produce(const Ring& ring, const ForwardParams& params, const Unit& unit,
                                        VisitIterator& iterator, int visits) {
  Position at;
  // If a head's queries fill more than one unit, other blocks read these keys too.
  const u64 policy = params.q_tiles > 1 ? evict_normal_policy() : evict_first_policy();
  int kv_tile = visits > 0 ? iterator.next() : 0;
  int page = visits > 0 ? page_of_piece(params, unit.tile.b, kv_tile) : 0;
#pragma unroll 1
  for (int i = 0; i < visits; ++i) {
    // Looks up the page here, so that the load runs while this waits for room.
    const int next_tile = i + 1 < visits ? iterator.next() : kv_tile;
    const int next_page = page_of_piece(params, unit.tile.b, next_tile);
    barrier_wait(ring.empty + 8 * at.stage, at.phase ^ 1);
    const u32 full = ring.full + 8 * at.stage;
    if (elect_one()) {
      barrier_arrive_expect(full, kKBytes + kVBytes);
    }
    __syncwarp();
    load_pieces<kQkBoxes>(ring.k + at.stage * kKBytes, params.k_map, full, kv_tile, unit.kv_head, page, policy);
    load_pieces<kVBoxes>(ring.v + at.stage * kVBytes, params.v_map, full, kv_tile, unit.kv_head, page, policy);
    kv_tile = next_tile;
    page = next_page;
    at.advance();
  }
}

// For rows of 128 swizzled bytes: the address of the lane's row in the first 16 bytes of a step. Those of step s of a
// box are at that address ^ 32 * s.
__device__ __forceinline__ u32 swizzled_row(u32 box, int row, int half) {
  return box + row * 128 + ((half ^ row % 8) << 4);
}

// The same product as in sm80/products.cuh, from boxes: the warp's 16 keys.
__device__ __forceinline__ void multiply_boxed_scores(float (&s)[kWarpKeys / 2], const InputElement* q, u32 k) {
  const int lane = threadIdx.x % 32;
  const u32 q_address = shared_address(q + lane % 16 * kQkRow + lane / 16 * 8);
  const u32 k_address = swizzled_row(k, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int i = 0; i < kWarpKeys / 2; ++i) {
    s[i] = 0.0f;
  }
#pragma unroll
  for (int step = 0; step < FL_QK_DIM / 16; ++step) {
    u32 a[4], b[4];
    load_matrices(a, q_address + step * 32);
    load_matrices(b, (k_address ^ step % 4 * 32) + step / 4 * kKvBoxBytes);
    multiply_add(s, a, b[0], b[1]);
    multiply_add(s + 4, a, b[2], b[3]);
  }
}

__device__ __forceinline__ void multiply_boxed_output(float (&output)[FL_V_DIM / 2], const float (&p)[kWarpKeys / 2],
                                                      u32 v) {
  const int lane = threadIdx.x % 32;
  const u32 v_address = swizzled_row(v, lane % 16, lane / 16);
  u32 a[kWarpKeys / 4];
  pack_probabilities(p, a);
#pragma unroll
  for (int pair = 0; pair < FL_V_DIM / 16; ++pair) {
    u32 b[4];
    load_matrices_transposed(b, (v_address ^ pair % 4 * 32) + pair / 4 * kKvBoxBytes);
    multiply_add(output + 8 * pair, a, b[0], b[1]);
    multiply_add(output + 8 * pair + 4, a, b[2], b[3]);
  }
}

__device__ __forceinline__ void consume(Share& share, const Ring& ring, const InputElement* q,
                                        const ForwardParams& params, const Unit& unit, const Rows& rows,
                                        VisitIterator& iterator, const Visits& found) {
  const float factor = score_factor(params);
  const int warp_key = threadIdx.x / 32 * kWarpKeys;
  const int visits = found.partial + found.full;
  Position at;
#pragma unroll 1
  for (int i = 0; i < visits; ++i) {
    const int kv = iterator.next() * FL_BLOCK_N + warp_key + threadIdx.x % 4 * 2;
    barrier_wait(ring.full + 8 * at.stage, at.phase);
    float scores[kWarpKeys / 2];
    multiply_boxed_scores(scores, q, ring.k + at.stage * kKBytes + warp_key * 128);
    apply_score_mod(scores, params, rows, kv, iterator.adds_zeros());
    if (i < found.partial) {
      apply_masks(scores, params, rows, kv);
    }
    const TileSoftmax softmax = update_maxima(scores, share.state, factor);
    take_exponentials(scores, share.state, factor, softmax);
#if FL_EXACT_SUMS
    share.sum_rounded(scores, softmax.alpha);
#endif
    if (softmax.rescale) {
      rescale_rows(share.output, softmax.alpha);
    }
    drop_out(scores, params, rows, kv);
    multiply_boxed_output(share.output, scores, ring.v + at.stage * kVBytes + warp_key * 128);
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      barrier_arrive(ring.empty + 8 * at.stage);
    }
    at.advance();
    if (i + 1 == (FL_REDO_ALL ? visits : found.partial)) {
      redo_nonfinite<kWarpKeys>(share.output, share.state.maximum, params, unit.tile, rows, warp_key);
    }
  }
}

__device__ __forceinline__ void load_queries(InputElement* q, const ForwardParams& params, const Unit& unit) {
  const auto q_row = [&](int row) {
    const int in_group = row / params.q_len;
    return query_row(params, unit.tile.b, unit.kv_head * params.group + in_group, row - in_group * params.q_len);
  };
  load_tile<kRows, FL_QK_DIM, kQkRow>(q, q_row, params.q_strides.column, unit.first_row, params.group * params.q_len,
                                      FL_HEAD_DIM, params.vector_q);
  copy_commit();
  copy_wait<0>();
  named_barrier_sync(1, kThreads);
}

extern "C" __global__ void __launch_bounds__(kThreads + 32, 2)
    flashlift_forward(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  __shared__ u64 barriers[2 * kStages];
  InputElement* const q = reinterpret_cast<InputElement*>(shared_memory + kStages * (kKBytes + kVBytes));
  float* const memory = reinterpret_cast<float*>(shared_memory);  // after the last use of keys and values
  Ring ring;
  ring.k = shared_address(shared_memory);
  ring.v = ring.k + kStages * kKBytes;
  ring.full = shared_address(barriers);
  ring.empty = ring.full + 8 * kStages;
  if (threadIdx.x == 0) {
    ring.init(kStages);
  }
  __syncthreads();

  const int index = blockIdx.x / params.splits;
  const int split = blockIdx.x - index * params.splits;
  const Unit unit = unit_of_block(params, index, split);
  const Visits found = find_visits(params, unit.tile);  // the same in every warp
  VisitIterator iterator(params, unit.tile, found);
  if (threadIdx.x >= kThreads) {
    produce(ring, params, unit, iterator, found.partial + found.full);
    return;
  }
  const Rows rows = rows_of_thread(params, unit);
  load_queries(q, params, unit);
  Share share;
  share.clear();
  consume(share, ring, q, params, unit, rows, iterator, found);
  finish_unit(share, memory, params, unit, rows, index, split);
}

}  // namespace flashlift::cuda
