// Gradients of captured tensors that both the query and the key index (planes), with Hopper's instructions. A block has
// some queries of a plane and a run of its key tiles. For each key tile it sums over all heads that share the plane's
// elements, and stores the sums.
#include "cuda/kernels/common/key_tiles.cuh"
#include "cuda/kernels/sm90/capture_tiles.cuh"

namespace flashlift::cuda {
namespace {

// A stage has the queries of a head, their d_out, and a tile of the head's keys and values.
constexpr u32 kRowBytes = kConsumers * (kRowQkBytes + kRowVBytes);
constexpr u32 kColumnBytes = kColumnQkBytes + kColumnVBytes;
constexpr u32 kStageBytes = kRowBytes + kColumnBytes;
constexpr int kStages = FL_STAGES;
enum ItemField { kItemHead, kItemKeyTile, kItemFlags, kItemFieldCount };
constexpr int kLastOfTile = 64;  // behind the flags of column tiles: no head of the key tile comes after it

struct PlaneLayout {
  u32 stages, full, empty, fields;

  __device__ __forceinline__ explicit PlaneLayout(u32 base)
      : stages(base), full(base + kStages * kStageBytes), empty(full + 8 * kStages), fields(empty + 8 * kStages) {}
};
static_assert(kStages * (kStageBytes + 16 + 4 * kItemFieldCount) <= FL_SHARED_BYTES,
              "the host reserves less shared memory than the kernel uses");

// The block's part of the plane.
struct Part {
  int first_b, last_b, first_h, last_h;
  int row, last_row;
  int first_tile, end_tile;  // of keys

  __device__ __forceinline__ Part(const ForwardParams& params, const PlaneLoad& plane) {
    const int kv_tiles = (params.kv_len + FL_BLOCK_N - 1) / FL_BLOCK_N;
    const int runs = (kv_tiles + plane.key_tiles - 1) / plane.key_tiles;
    const int run = static_cast<int>(blockIdx.x) % runs;
    const int q_tile = static_cast<int>(blockIdx.x) / runs % params.q_tiles;
    const int own = static_cast<int>(blockIdx.x) / runs / params.q_tiles;
    first_b = own / plane.heads;
    first_h = own % plane.heads;
    last_b = plane.batches > 1 ? first_b : params.batch - 1;
    last_h = plane.heads > 1 ? first_h : params.q_heads - 1;
    row = q_tile * FL_BLOCK_M;
    last_row = min(row + FL_BLOCK_M, params.q_len) - 1;
    first_tile = run * plane.key_tiles;
    end_tile = min(first_tile + plane.key_tiles, kv_tiles);
  }
  // Then its queries are loaded once.
  __device__ __forceinline__ bool has_one_head() const { return first_b == last_b && first_h == last_h; }
};

struct PlaneProducer {
  const ForwardParams& params;
  const TensorMap& d_out_map;
  const PlaneLayout& shared;
  const Part& part;
  ColumnRing<kStages> ring;
  bool has_rows = false;

  __device__ __forceinline__ void load(int b, int h, int key_tile, int flags) {
    const u32 stage = ring.stage();
    const u32 barrier = shared.full + 8 * stage;
    barrier_wait(shared.empty + 8 * stage, ring.phase() ^ 1);
    if (elect_one()) {
      const u32 fields = shared.fields + 4 * kItemFieldCount * stage;
      store_shared(fields + 4 * kItemHead, b * params.q_heads + h);
      store_shared(fields + 4 * kItemKeyTile, key_tile);
      store_shared(fields + 4 * kItemFlags, flags);
      const bool loads = (flags & kNothing) == 0;
      const bool loads_rows = loads && !has_rows;
      barrier_arrive_expect(barrier, (loads ? kColumnBytes : 0) + (loads_rows ? kRowBytes : 0));
      if (loads_rows) {
        load_rows(shared.stages + (part.has_one_head() ? 0 : stage * kStageBytes), barrier, b, h);
      }
      if (loads) {
        load_columns(shared.stages + stage * kStageBytes + kRowBytes, barrier, b, h / params.group, key_tile);
      }
    }
    has_rows |= part.has_one_head() && (flags & kNothing) == 0;
    ring.advance();
  }

  __device__ __forceinline__ void load_rows(u32 to, u32 barrier, int b, int h) const {
#pragma unroll 1
    for (int warpgroup = 0; warpgroup < kConsumers; ++warpgroup) {
      const int row = part.row + 64 * warpgroup;
#pragma unroll
      for (int box = 0; box < kQkBoxes; ++box) {
        load_box(to + warpgroup * kRowQkBytes + box * kRowBoxBytes, params.q_map, barrier, box * 64, row, h, b);
      }
#pragma unroll
      for (int box = 0; box < kVBoxes; ++box) {
        load_box(to + kConsumers * kRowQkBytes + warpgroup * kRowVBytes + box * kRowBoxBytes, d_out_map, barrier,
                 box * 64, row, h, b);
      }
    }
  }

  __device__ __forceinline__ void load_columns(u32 to, u32 barrier, int b, int kv_head, int key_tile) const {
    const int key = key_tile * FL_BLOCK_N;
#pragma unroll
    for (int box = 0; box < kQkBoxes; ++box) {
      load_box(to + box * kColumnBoxBytes, params.k_map, barrier, box * 64, key, kv_head, b);
    }
#pragma unroll
    for (int box = 0; box < kVBoxes; ++box) {
      load_box(to + kColumnQkBytes + box * kColumnBoxBytes, params.v_map, barrier, box * 64, key, kv_head, b);
    }
  }

  // All heads that see the part's key tiles. A key tile that no head sees has one item without a head.
  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (int tile = part.first_tile; tile < part.end_tile; ++tile) {
      const int kv = tile * FL_BLOCK_N;
      const int kv_last = min(kv + FL_BLOCK_N, params.kv_len) - 1;
      const bool whole = part.last_row - part.row == FL_BLOCK_M - 1 && kv_last - kv == FL_BLOCK_N - 1;
      const int last = tile + 1 == part.end_tile ? kLast : 0;
      int waiting_b = -1;  // a head that is loaded when it is known whether it is the last one
      int waiting_h = 0;
      int waiting_flags = 0;
#pragma unroll 1
      for (int b = part.first_b; b <= part.last_b; ++b) {
#pragma unroll 1
        for (int h = part.first_h; h <= part.last_h; ++h) {
          const TileKind kind = classify_scores(params, b, h, part.row, part.last_row, kv, kv_last, whole);
          if (kind == kTileSkipped) {
            continue;
          }
          if (waiting_b >= 0) {
            load(waiting_b, waiting_h, tile, waiting_flags);
          }
          waiting_b = b;
          waiting_h = h;
          waiting_flags = is_partial(kind) ? kPartial : 0;
        }
      }
      if (waiting_b >= 0) {
        load(waiting_b, waiting_h, tile, waiting_flags | kLastOfTile | last);
      } else {
        load(part.first_b, part.first_h, tile, kNothing | kLastOfTile | last);
      }
    }
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashlift_plane_gradients(const __grid_constant__ ForwardParams params,
                              const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles,
                              const __grid_constant__ PlaneLoad plane, const __grid_constant__ TensorMap d_out_map) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const PlaneLayout shared(shared_address(shared_memory));
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(shared.full + 8 * stage, 1);
      barrier_init(shared.empty + 8 * stage, 4 * kConsumers);
    }
    barrier_init_fence();
  }
  begin(params, d_out_map);
  const Part part(params, plane);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_decrease<FL_PRODUCER_REGISTERS>();
    if (threadIdx.x < 32) {
      PlaneProducer producer{params, d_out_map, shared, part};
      producer.run();
    }
  } else {
    registers_increase<FL_CONSUMER_REGISTERS>();
    const int row = part.row + 64 * (warpgroup - 1) + static_cast<int>(threadIdx.x) % 128 / 32 * 16 +
                    static_cast<int>(threadIdx.x) % 32 / 4;
    const RowReader reader(params, backward, tiles);
    const u32 row_step = part.has_one_head() ? 0 : kStageBytes;  // from the rows of a stage to those of the next one
    TileValues sums;
#pragma unroll
    for (int i = 0; i < FL_BLOCK_N / 2; ++i) {
      sums[i] = 0.0f;
    }
    ColumnRing<kStages> ring;
    int flags;
#pragma unroll 1
    do {
      const u32 stage = ring.stage();
      const u32 rows = shared.stages + stage * row_step;
      const u32 columns = shared.stages + stage * kStageBytes + kRowBytes;
      TileValues s;
      TileValues dp;
      barrier_wait(shared.full + 8 * stage, ring.phase());
      wgmma_fence();
      wgmma_qk<kRowBoxBytes / 16, kColumnBoxBytes / 16>(
          s, descriptor_k_major(rows + (warpgroup - 1) * kRowQkBytes), descriptor_k_major(columns));
      wgmma_dp<kRowBoxBytes / 16, kColumnBoxBytes / 16>(
          dp, descriptor_k_major(rows + kConsumers * kRowQkBytes + (warpgroup - 1) * kRowVBytes),
          descriptor_k_major(columns + kColumnQkBytes));
      wgmma_commit();
      const u32 fields = shared.fields + 4 * kItemFieldCount * stage;
      flags = load_shared_once(fields + 4 * kItemFlags);
      const int head = load_shared_once(fields + 4 * kItemHead);
      const int b = head / params.q_heads;
      const TilePlace place{b,
                            head - b * params.q_heads,
                            {row, row + 8},
                            load_shared_once(fields + 4 * kItemKeyTile) * FL_BLOCK_N +
                                static_cast<int>(threadIdx.x) % 4 * 2};
      const RowGradient statistics[2] = {reader.at(b, place.h, row), reader.at(b, place.h, row + 8)};
      wgmma_wait<0>();
      pin(s);
      pin(dp);
      release(shared.empty + 8 * stage);
      if ((flags & kNothing) == 0) {
        finish_tile(
            s, dp, params, place, (flags & kPartial) != 0, [&](int i) { return statistics[i / 2 % 2]; },
            [&](int i, float ds, float product) {
              const int q = place.q(i);
              sums[i] += plane_gradient(plane.load, ds, product, gradient_row(b, place.h, q, params),
                                        gradient_column(b, place.kv(i), params), b, place.h, q, place.kv(i), 0, params);
            });
      }
      if ((flags & kLastOfTile) != 0) {
#pragma unroll
        for (int i = 0; i < FL_BLOCK_N / 2; ++i) {
          if (place.q(i) < params.q_len && place.kv(i) < params.kv_len) {
            store_plane(plane.load, sums[i], part.first_b, part.first_h, place.q(i), place.kv(i), params,
                        backward.gradients);
          }
          sums[i] = 0.0f;
        }
      }
      ring.advance();
    } while ((flags & kLast) == 0);
  }
}

}  // namespace flashlift::cuda
