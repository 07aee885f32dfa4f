// The gradients of captured tensors with Hopper's instructions: the sums that sm80/backward_captures.cu describes, except
// those of planes (backward_planes.cu). A warpgroup computes s = <q, k> and d_p = <d_out, v> of 64 rows and every visited
// column tile. Both stay in registers. Warpgroups do not synchronise, so that the products of one overlap with the
// exponentials of others.
#include "cuda/kernels/common/diagonals.cuh"
#include "cuda/kernels/common/row_sums.cuh"
#include "cuda/kernels/sm90/backward_producer.cuh"
#include "cuda/kernels/sm90/capture_tiles.cuh"

namespace flashlift::cuda {
namespace {

struct Consumer {
  const ForwardParams& params;
  const SharedLayout& shared;
  const int warpgroup;
  const int b;
  const int first_row;  // of the block

  __device__ __forceinline__ int row(int r) const {
    return first_row + 64 * warpgroup + static_cast<int>(threadIdx.x) % 128 / 32 * 16 +
           static_cast<int>(threadIdx.x) % 32 / 4 + 8 * r;
  }

  // For each column tile: calls prepare(place) while the products run, and then body(s, d_p, place, partial). If no
  // column is visited, the producer sends one tile that stands for none.
  template <typename Prepare, typename Body>
  __device__ __forceinline__ void for_each_tile(const Prepare& prepare, const Body& body) const {
    barrier_wait(shared.rows_full, 0);
    u64 rows_qk = descriptor_k_major(shared.rows_qk + warpgroup * kRowQkBytes);
    u64 rows_v = descriptor_k_major(shared.rows_v + warpgroup * kRowVBytes);
    pin(rows_qk);
    pin(rows_v);
    ColumnRings rings;
    int flags;
#pragma unroll 1
    do {
      const u32 stage = rings.qk.stage();
      TileValues s;
      TileValues dp;
      barrier_wait(shared.qk_full + 8 * stage, rings.qk.phase());
      wgmma_fence();
      wgmma_qk<kRowBoxBytes / 16, kColumnBoxBytes / 16>(
          s, rows_qk, descriptor_k_major(shared.columns_qk + stage * kColumnQkBytes));
      wgmma_commit();
      const u32 fields = shared.fields + 4 * kFieldCount * stage;
      flags = load_shared_once(fields + 4 * kFieldFlags);
      const TilePlace place{b,
                            load_shared_once(fields + 4 * kFieldHead),
                            {row(0), row(1)},
                            load_shared_once(fields + 4 * kFieldFirst) + static_cast<int>(threadIdx.x) % 4 * 2};
      barrier_wait(shared.v_full + 8 * rings.v_stage(), rings.v_phase());
      wgmma_fence();
      wgmma_dp<kRowBoxBytes / 16, kColumnBoxBytes / 16>(
          dp, rows_v, descriptor_k_major(shared.columns_v + rings.v_stage() * kColumnVBytes));
      wgmma_commit();
      if ((flags & kNothing) == 0) {
        prepare(place);
      }
      wgmma_wait<0>();
      pin(s);
      pin(dp);
      release(shared.qk_empty + 8 * stage);
      release(shared.v_empty + 8 * rings.v_stage());
      if ((flags & kNothing) == 0) {
        body(s, dp, place, (flags & kPartial) != 0);
      }
      rings.advance();
    } while ((flags & kLast) == 0);
  }
};

}  // namespace

#if !FL_ROWS_ARE_KEYS
namespace {

// A block has a tile of queries: a warp loads them, and all keys that they see, and each consumer warpgroup calls
// consume(consumer, tile).
template <typename Consume>
__device__ __forceinline__ void run_block(unsigned char* shared_memory, const ForwardParams& params,
                                          const RowTiles& tiles, const TensorMap& d_out_map, const Consume& consume) {
  const SharedLayout shared = shared_layout(shared_address(shared_memory));
  begin(shared, params, d_out_map);
  const QueryTile tile = query_tile(params, blockIdx.x);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_decrease<FL_PRODUCER_REGISTERS>();
    if (threadIdx.x < 32) {
      Producer producer{params, tiles, d_out_map, shared, tile.b, tile.h / params.group};
      producer.load_rows(tile.h, tile.row);
      const ColumnTile nothing{true, tile.h, (1 << 29) / FL_BLOCK_N * FL_BLOCK_N, kPartial};
      producer.load_all({tile.b, tile.h, tile.h, tile.row, tile.last_row}, nothing);
    }
  } else {
    registers_increase<FL_CONSUMER_REGISTERS>();
    consume(Consumer{params, shared, warpgroup - 1, tile.b, tile.row}, tile);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashlift_backward_rows(const __grid_constant__ ForwardParams params,
                            const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles,
                            const __grid_constant__ TensorMap d_out_map) {
  if (is_done(backward)) {
    return;
  }
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  run_block(shared_memory, params, tiles, d_out_map, [&](const Consumer& consumer, const QueryTile& tile) {
    RowSums sums;
    consumer.for_each_tile([](const TilePlace&) {},
                           [&](TileValues& s, TileValues& dp, const TilePlace& place, bool partial) {
                             sum_tile(s, dp, sums, params, place, partial);
                           });
    store_rows(sums, params, backward, {tile.b, tile.h, {consumer.row(0), consumer.row(1)}, 0});
  });
}

#if FL_QUERY_GRADIENTS

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashlift_query_gradients(const __grid_constant__ ForwardParams params,
                              const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles,
                              const __grid_constant__ TensorMap d_out_map,
                              const __grid_constant__ ElementTables shapes) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  run_block(shared_memory, params, tiles, d_out_map, [&](const Consumer& consumer, const QueryTile& tile) {
    RowGradient rows[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows[r] = row_at(params, backward, tiles, tile.b, tile.h, consumer.row(r));
    }
    GradientSums sums{};
    BlockTables tables_of_block(shapes, consumer.shared.tables);
    constexpr u32 kTablesBarrier = kConsumers + 1;
    constexpr int kAdders = 128 * kConsumers;
    const int adder = static_cast<int>(threadIdx.x) - 128;
    tables_of_block.clear(adder, kAdders);
    named_barrier_sync(kTablesBarrier, kAdders);
#if FL_DIAGONAL_GRADIENTS
    constexpr u32 kFirstBarrier = 1;
    const auto sync = [&] { named_barrier_sync(kFirstBarrier + consumer.warpgroup, 128); };
    using Sums = Diagonals<64, 128>;
    static_assert(Sums::kElements * sizeof(float) == kDiagonalBytes);
    Sums diagonals(params, backward, tile.b, tile.h, tile.row + 64 * consumer.warpgroup,
                   reinterpret_cast<float*>(shared_memory + (consumer.shared.diagonals - consumer.shared.rows_qk)) +
                       consumer.warpgroup * Sums::kElements);
#endif
    consumer.for_each_tile(
        [](const TilePlace&) {},
        [&](TileValues& s, TileValues& dp, const TilePlace& place, bool partial) {
          [[maybe_unused]] TileValues of_diagonal;
          finish_tile(
              s, dp, params, place, partial, [&](int i) { return rows[i / 2 % 2]; },
              [&](int i, float ds, float product) {
                const int q = place.q(i);
                of_diagonal[i] = add_captured(ds, product, gradient_row(place.b, place.h, q, params),
                                              gradient_column(place.b, place.kv(i), params), place.b, place.h, q,
                                              place.kv(i), 0, params, backward.gradients, sums, tables_of_block,
                                              i / 2 % 2);
              });
#if FL_DIAGONAL_GRADIENTS
          sync();  // the sums before are complete
          diagonals.add(of_diagonal, place.column - static_cast<int>(threadIdx.x) % 4 * 2, sync);
#endif
        });
#if FL_DIAGONAL_GRADIENTS
    diagonals.finish();
#endif
    add_captured_elements(sums, tables_of_block, tile.b, tile.h, 0, 0, params, backward.gradients);
    named_barrier_sync(kTablesBarrier, kAdders);
    add_captured_tables(tables_of_block, adder, kAdders, tile.b, tile.h, 0, 0, params, backward.gradients);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int q = consumer.row(r);
      add_captured_rows(sums, r, tile.b, tile.h, min(q, params.q_len - 1), q < params.q_len, params,
                        backward.gradients);
    }
  });
}

#endif
#else

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashlift_key_gradients(const __grid_constant__ ForwardParams params,
                            const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles,
                            const __grid_constant__ TensorMap d_out_map) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const SharedLayout shared = shared_layout(shared_address(shared_memory));
  begin(shared, params, d_out_map);
  const KeyTile keys = key_tile<FL_BLOCK_M>(params, backward, blockIdx.x);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_decrease<FL_PRODUCER_REGISTERS>();
    if (threadIdx.x < 32) {
      Producer producer{params, tiles, d_out_map, shared, keys.b, keys.kv_head};
      producer.load_rows(0, keys.first);
      const int first_head = keys.kv_head * params.group;
      const ColumnTile nothing{true, first_head, (1 << 29) / FL_BLOCK_N * FL_BLOCK_N, kPartial};
      producer.load_all({keys.b, first_head, first_head + params.group - 1, keys.first, keys.last}, nothing);
    }
  } else {
    registers_increase<FL_CONSUMER_REGISTERS>();
    const Consumer consumer{params, shared, warpgroup - 1, keys.b, keys.first};
    GradientSums sums{};
    int head = -1;
    const auto add_sums = [&] {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int kv = consumer.row(r);
        add_captured_keys(sums, r, kv < params.kv_len, keys.b, head, 0, min(kv, params.kv_len - 1), params,
                          backward.gradients);
      }
      sums = {};
    };
    const RowReader reader(params, backward, tiles);
    RowGradient queries[FL_BLOCK_N / 4];  // of a thread's columns
    consumer.for_each_tile(
        [&](const TilePlace& place) { reader.pairs(queries, place.b, place.h, place.column); },
        [&](TileValues& s, TileValues& dp, const TilePlace& place, bool partial) {
          if (head >= 0 && place.h != head) {  // the element may be another head's
            add_sums();
          }
          head = place.h;
          finish_tile(
              s, dp, params, place, partial, [&](int i) { return queries[i / 4 * 2 + i % 2]; },
              [&](int i, float ds, float product) {
                const int q = place.q(i);
                add_captured_key(ds, product, gradient_row(place.b, place.h, q, params),
                                 gradient_column(place.b, place.kv(i), params), place.b, place.h, q, place.kv(i), 0,
                                 params, sums, i / 2 % 2);
              });
        });
    if (head >= 0) {
      add_sums();
    }
  }
}

#endif

}  // namespace flashlift::cuda
