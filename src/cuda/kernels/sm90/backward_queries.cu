// The Hopper backward kernel for queries: d_q, and a sufficiently exact delta for each row.
//
// There is one block per multiprocessor, which processes one tile of queries after the other. While consumers store a
// tile's gradients, the producer loads the next one's queries and first keys.
#include "cuda/kernels/sm90/backward_gradients.cuh"
#include "cuda/kernels/sm90/backward_producer.cuh"

namespace flashlift::cuda {
namespace {

constexpr bool kMayRepeat = kCleans || !FL_SUMS_FIRST;

// The share of the sinks in the row's softmax.
__device__ __forceinline__ float sinks_share(const ForwardParams& params, int h, float lse) {
  float share = 0.0f;
#if FL_HAS_SINKS
  for (int i = 0; i < params.sinks_per_head; ++i) {
    share += exponential(fmaf(sink_at(params, h, i), kExponentUnit, -lse));
  }
#endif
  return share;
}

__device__ __forceinline__ bool has_nonfinite(const Consumer& consumer) {
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kSecondSums; ++i) {
    total += consumer.second[i];
  }
  return !(fabsf(total) < FL_INFINITY);
}

// The error of the delta from the rounded output: the sum of the row's d_s. If that is not finite, neither is d_q, unless
// a select leaves the whole row out.
__device__ __forceinline__ float missing_delta(const Consumer& consumer, const ForwardParams& params,
                                               const BackwardParams& backward, const QueryTile& tile, int r) {
  const int q = consumer.row(r);
  const float rest =
      quad_sum(consumer.row_rest[r]) - sinks_share(params, tile.h, consumer.row_lse[r]) * consumer.row_delta[r];
  const bool empty = consumer.row_lse[r] == FL_INFINITY;
  const float missing = rest - (q < params.q_len ? d_lse_at(backward, tile.b, tile.h, q) : 0.0f);
  return empty || !(fabsf(missing) < FL_INFINITY) ? 0.0f : missing;
}

// Whether this error is significant compared with the rounding of d_s. It adds `missing` times a mean of K to a row of
// d_q; rounding adds about kRounding times the square root of the row's sum of squares. Both the mean over a warp's
// rows and each row are compared. For independent values, the mean of 16 rows' squared ratios is 0.7 ± 0.25, because the
// output is a sum of rounded probabilities, and 1.4 ± 0.5 if it is rounded itself. Chance alone should not repeat a tile:
// that of eight warps exceeds 1.5 in 4 % of all tiles where the output is exact.
__device__ __forceinline__ bool shows(const float (&missing)[2], const float (&squares)[2]) {
  constexpr float kRounding = FL_BF16 ? 1.0f / 512 : 1.0f / 4096;
  constexpr float kMeanShare = FL_EXACT_OUTPUT ? 2.25f : 1.5f;
  constexpr float kRowShare = 16.0f;
  constexpr float kUnit = kRounding * kRounding;
  bool large = false;
  float sums[2] = {0.0f, 0.0f};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float square = missing[r] * missing[r];
    large |= square > kRowShare * kUnit * squares[r];
    sums[0] += square;
    sums[1] += kUnit * squares[r];
  }
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
    sums[0] += __shfl_xor_sync(0xffffffff, sums[0], step);
    sums[1] += __shfl_xor_sync(0xffffffff, sums[1], step);
  }
  return large || sums[0] > kMeanShare * sums[1];
}

// Takes what the wrong delta did from d_q; or says that everything is to be done again with the right one.
__device__ __forceinline__ bool correct(Consumer& consumer, const float (&missing)[2]) {
#if FL_SUMS_FIRST
#pragma unroll
  for (int i = 0; i < kSecondSums; ++i) {
    consumer.second[i] = fmaf(-missing[i / 2 % 2], consumer.first[i], consumer.second[i]);
  }
  return false;
#else
  float squares[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // (Where one key has all of a row, nothing is left but what f32 rounds.)
    const float noise = (consumer.row_delta[r] - missing[r]) * (1.0f / 512);
    squares[r] = fmaf(noise, noise, quad_sum(consumer.row_squares[r]));
  }
  return any_consumer(shows(missing, squares));
#endif
}

__device__ __forceinline__ void finish(Consumer& consumer, const ForwardParams& params, const BackwardParams& backward,
                                       const RowTiles& tiles, const QueryTile& tile) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int q = consumer.row(r);
    if (q < params.q_len && threadIdx.x % 4 == 0) {
      row_statistics(params, tiles, tile.b, tile.h, q)[tiles.rows] = consumer.row_delta[r];
    }
  }
  if (backward.d_q != nullptr) {
    store_gradient<FL_HEAD_DIM>(consumer.second, consumer, params.scale, backward.d_q, backward.d_q_strides,
                                backward.vector_d_q != 0, tile.b, tile.h, params.q_len);
  }
}

__device__ __forceinline__ void produce(const ForwardParams& params, const RowTiles& tiles, const TensorMap& d_out_map,
                                        const SharedLayout& shared) {
  Producer producer{params, tiles, d_out_map, shared, 0, 0};
  int index = producer.take(tiles.next_block + kNextQueries);
  u32 turn = 0;
#pragma unroll 1
  for (; index < params.total_tiles; ++turn) {
    const QueryTile tile = query_tile(params, index);
    producer.b = tile.b;
    producer.kv_head = tile.h / params.group;
    const BlockRows rows{tile.b, tile.h, tile.h, tile.row, tile.last_row};
    const ColumnTile nothing{true, tile.h, (1 << 29) / FL_BLOCK_N * FL_BLOCK_N, kPartial};
    producer.load_all(
        rows, nothing, kBlockVBytes,
        [&] {
          producer.give_rows(turn, index);
          producer.load_qk_rows(tile.h, tile.row);
        },
        [&](const ColumnRings& first) {
          producer.load_v_rows(tile.h, tile.row, shared.v_full + 8 * first.v_stage());
        });
    const int next = producer.take(tiles.next_block + kNextQueries);
    if (next < params.total_tiles) {
      const QueryTile next_tile = query_tile(params, next);
      producer.prefetch_rows(params.q_map, d_out_map, next_tile.b, next_tile.h, next_tile.row);
    }
    if (kMayRepeat) {
      barrier_wait(shared.verdict, turn % 2);
      if (load_shared(shared.verdict + 8) != 0) {
        producer.load_all(rows, nothing);
      }
    }
    index = next;
  }
  producer.end(turn);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flashlift_backward_queries(const __grid_constant__ ForwardParams params,
                               const __grid_constant__ BackwardParams backward, const __grid_constant__ RowTiles tiles,
                               const __grid_constant__ TensorMap d_out_map) {
  if (others_run(backward, tiles) || (FL_REPEATS && *tiles.nonfinite_keys == 0)) {
    return;
  }
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const SharedLayout shared = shared_layout(shared_address(shared_memory));
  begin(shared, params, d_out_map);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_decrease<FL_PRODUCER_REGISTERS>();
    if (threadIdx.x < 32) {
      produce(params, tiles, d_out_map, shared);
    }
  } else {
    registers_increase<FL_CONSUMER_REGISTERS>();
    Consumer consumer{params, shared, warpgroup - 1, 0, 0};
    consumer.start();
#pragma unroll 1
    for (u32 turn = 0;; ++turn) {
      const int index = wait_for_rows(shared, turn);
      if (index == kNoRows) {
        break;
      }
      const QueryTile tile = query_tile(params, index);
      consumer.b = tile.b;
      consumer.first_row = tile.row;
      consumer.careful = false;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = consumer.row(r) - tile.row;
        const int place = row / tiles.rows * 2 * tiles.rows + row % tiles.rows;
        consumer.row_lse[r] = __int_as_float(load_shared(shared.row_statistics + 4 * place));
        consumer.row_delta[r] = __int_as_float(load_shared(shared.row_statistics + 4 * (place + tiles.rows)));
      }
      bool again = false;
#pragma unroll 1
      do {
        consumer.sweep();
        if (again) {
          break;
        }
        float missing[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          missing[r] = missing_delta(consumer, params, backward, tile, r);
          consumer.row_delta[r] += missing[r];
        }
        again = correct(consumer, missing);
        consumer.careful = kCleans && any_consumer(has_nonfinite(consumer));
        again |= consumer.careful;
        if (kMayRepeat && threadIdx.x == 128) {
          store_shared(shared.verdict + 8, again);
          barrier_arrive(shared.verdict);
        }
      } while (again);
      barrier_arrive(shared.rows_empty);
      finish(consumer, params, backward, tiles, tile);
    }
  }
}

}  // namespace flashlift::cuda
