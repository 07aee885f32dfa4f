// The data that the parts of one backward call share.
#pragma once

#include <atomic>

#include "cpu/backward.h"
#include "cpu/call_memory.h"
#include "cpu/partition.h"
#include "support/rounding.h"
#include "visits/visits.h"

namespace flashlift::cpu {

struct BackwardCall {
  const Backward& kernel;
  const BackwardArguments& arguments;
  CallSizes sizes;
  int64_t kv_chunk;  // keys per task
  const visits::Visits& visits;
  const CaptureView* captures;
  RowGradient* rows;  // [batch, q_heads, q_len]
  // [batch, q_heads, tiles of queries]: the single block of keys that all rows of the tile see, whose scores give their
  // softmax; kNoBlock: find_rows() has computed the softmax.
  int32_t* sole_blocks;
  bool multiplies;   // the call needs more than the sums of rows
  float* dq;         // [batch, q_heads, q_len, d_stride] sums; null if the call does not compute d_q
  int64_t d_stride;  // head_dim and value_dim in whole vectors
  int64_t v_stride;
  Dropout dropout;

  static constexpr int32_t kNoBlock = -1;

  const Problem& problem() const { return kernel.forward().problem(); }
  const TileKernels& kernels() const { return kernel.forward().kernels(); }
  const AttentionArguments& forward() const { return arguments.forward; }
  int64_t row_index(int64_t b, int64_t h, int64_t q) const { return (b * sizes.q_heads + h) * sizes.q_len + q; }
  int32_t& sole_block(int64_t b, int64_t h, int64_t q_begin) const {
    const int64_t q_tile = kernel.config().q_tile;
    return sole_blocks[(b * sizes.q_heads + h) * divide_up(sizes.q_len, q_tile) + q_begin / q_tile];
  }
};

// ---- Row statistics (backward_rows.cpp) ----

// Sums over a row's scores: `sum` of e^(score - max), `weighted` of e^(score - max) dp.
struct RowSums {
  double max = -__builtin_inf();
  double sum = 0;
  double weighted = 0;

  void add(const RowSums& other);
};
// The statistics of row (b, h, q) that follow from these sums.
RowGradient row_gradient(const BackwardCall& call, int64_t b, int64_t h, int64_t q, const RowSums& sums);

// Fills in call.rows and call.sole_blocks for a tile of queries.
struct RowsLayout {
  RowsLayout(const Backward& kernel, const CallSizes& sizes);
  size_t q, k, s, dp, d_out, d_out_low, maxima, part_sums, weighted, sums, coordinates, out;
  int64_t s_stride;
  size_t bytes;
};
void find_rows(const BackwardCall& call, int64_t b, int64_t h, int64_t q_begin, const RowsLayout& layout,
               const WorkerMemory& memory);
// The gradients of sinks: those of one head, or those that all heads share.
void store_sink_gradients(const BackwardCall& call, int64_t h_begin, int64_t h_end);

// ---- The products (backward_tile.cpp) ----

// The progress of each chunk of keys in the sequence of query tiles, which gives the sums of dq a fixed order.
struct Progress {
  static constexpr int64_t kDone = INT64_MAX;
  std::atomic<int64_t>* chunks;  // number of completed tiles of this stream's chunks
  int64_t stride;                // distance between two chunks
};

// Tiles of keys in a chunk, each with its own visited query tiles.
inline constexpr int64_t kMaxBlocks = BackwardConfig{}.max_chunk / BackwardConfig{}.kv_tile;

// The kernels of products with bf16 operands, or null if a call's products are in f32. A call with few queries uses
// f32: packing would take most of its time, and it sums too few rounding errors of ds for them to average out.
inline constexpr int64_t kLeastPairQueries = 64;
inline const PairKernels* product_pairs(const Backward& kernel, const CallSizes& sizes) {
  return sizes.q_len < kLeastPairQueries ? nullptr : kernel.forward().pairs();
}

struct ChunkLayout {
  ChunkLayout(const Backward& kernel, const CallSizes& sizes, int64_t kv_chunk);
  size_t kt, k, vt, q, q_rows, d_out, d_out_rows, d_out_low, d_out_low_rows, columns, s, ds, scores, maxima, sums,
      part_sums, weighted, dk, dv, stored, row, coordinates;
  int64_t s_stride;
  int64_t keys_stride;  // PairProducts: between the rows of the transposed d_k and d_v
  int64_t rows_stride;  // PairProducts: between the rows of the transposed q and d_out
  size_t bytes;
};

// Keys [chunk * call.kv_chunk, ...) of the key-value heads [pair_begin, pair_end), counted over batches, one after the
// other. `gradients`: the destinations of captured tensors' gradients.
void run_chunk(const BackwardCall& call, int64_t chunk, int64_t pair_begin, int64_t pair_end, const Progress& progress,
               const CaptureView* gradients, const ChunkLayout& layout, const WorkerMemory& memory);

}  // namespace flashlift::cpu
