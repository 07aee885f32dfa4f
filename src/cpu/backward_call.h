// What the parts of one backward call share.
#pragma once

#include <atomic>

#include "cpu/backward.h"
#include "cpu/call_memory.h"
#include "cpu/partition.h"
#include "plan/visits.h"

namespace flashlift::cpu {

struct BackwardCall {
  const Backward& kernel;
  const BackwardArguments& arguments;
  CallSizes sizes;
  int64_t kv_chunk;  // keys of a task
  const plan::Visits& visits;
  const CaptureView* captures;
  RowGradient* rows;  // [batch, q_heads, q_len]
  float* dq;          // [batch, q_heads, q_len, d_stride] sums; null if d_q is not wanted
  int64_t d_stride;   // head_dim and value_dim in whole vectors
  int64_t v_stride;
  Dropout dropout;

  const Problem& problem() const { return kernel.forward().problem(); }
  const TileKernels& kernels() const { return kernel.forward().kernels(); }
  const AttentionArguments& forward() const { return arguments.forward; }
  int64_t row_index(int64_t b, int64_t h, int64_t q) const { return (b * sizes.q_heads + h) * sizes.q_len + q; }
};

// ---- Row statistics (backward_rows.cpp) ----

// Fills in call.rows for a tile of queries.
struct RowsLayout {
  RowsLayout(const Backward& kernel, const CallSizes& sizes);
  size_t q, k, s, dp, d_out, weighted, maxima, state, coordinates, out;
  int64_t s_stride;
  size_t bytes;
};
void find_rows(const BackwardCall& call, int64_t b, int64_t h, int64_t q_begin, const RowsLayout& layout,
               const WorkerMemory& memory);
// The gradients of sinks: those of one head, or those that all heads share.
void store_sink_gradients(const BackwardCall& call, int64_t h_begin, int64_t h_end);

// ---- The products (backward_tile.cpp) ----

// How far each chunk of keys has come in the sequence of query tiles, so that sums into dq have a fixed order.
struct Progress {
  static constexpr int64_t kDone = INT64_MAX;
  std::atomic<int64_t>* chunks;  // tiles that are done, of this stream's chunks
  int64_t stride;                // between two chunks
};

// Tiles of keys in a chunk, each with its own visited query tiles.
inline constexpr int64_t kMaxBlocks = BackwardConfig{}.max_chunk / BackwardConfig{}.kv_tile;

struct ChunkLayout {
  ChunkLayout(const Backward& kernel, const CallSizes& sizes, int64_t kv_chunk);
  size_t kt, k, vt, q, q_rows, d_out, d_out_rows, s, ds, dk, dv, uniform, coordinates;
  int64_t s_stride;
  size_t bytes;
};

// Keys [chunk * call.kv_chunk, ...) of the key-value heads [pair_begin, pair_end), counted over batches, one after the
// other. `gradients` are where captured tensors' gradients are added.
void run_chunk(const BackwardCall& call, int64_t chunk, int64_t pair_begin, int64_t pair_end, const Progress& progress,
               const CaptureView* gradients, const ChunkLayout& layout, const WorkerMemory& memory);

}  // namespace flashlift::cpu
