// Arguments of the forward kernels. Read by the host compiler and by NVRTC, so it includes nothing and uses built-in
// types only. The captures come last: a kernel declares as many as its programs read, the host fills at most
// kMaxCaptures, and the driver copies only what the kernel declares.
#pragma once

#ifndef FL_CAPTURE_COUNT
#define FL_CAPTURE_COUNT 32
#endif

namespace flashlift::cuda {

struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

// The number of elements along the last dimension that share one pair of bounds, and the number of such rows if a tile
// reads several.
constexpr int kCaptureBlock = 64;
constexpr int kCaptureRows = 64;

// Most blocks that share the keys of a unit of a decode step: a multiple of a warp.
constexpr int kMostSplits = 128;

struct CaptureArgument {
  const void* data;
  // The smallest and the largest element of each block (captures.cuh); null where unknown.
  const void* bounds;
  int sizes[8];  // 1 if all elements along a dimension are the same
  long long strides[8];
};

// A captured tensor whose block bounds are computed.
struct BoundsArgument {
  CaptureArgument capture;
  void* bounds;
  long long blocks;  // 0: none
};

// Element strides of the logical orders of AttentionArguments: batch, head, row, column.
struct Strides {
  long long batch;
  long long head;
  long long row;
  long long column;
};

struct ForwardParams {
  // sm_90 only: q, k and v as (column, row, head, batch).
  TensorMap q_map;
  TensorMap k_map;
  TensorMap v_map;

  const void* q;
  const void* k;
  const void* v;
  void* out;
  void* residual;      // bytes with out's strides (residual.cuh); null unless requested
  float* lse;          // null unless requested
  float* row_max;      // null unless requested
  const float* sinks;  // null unless the problem has sinks
  // Zero before and after every launch. sm_90: {next tile, finished blocks}; decode: finished splits of each unit.
  int* counters;
  float* partials;        // decode only: the partial results of a unit's splits
  const int* page_table;  // null unless k and v are paged

  Strides q_strides;
  Strides k_strides;
  Strides v_strides;
  Strides out_strides;
  long long lse_strides[3];
  long long row_max_strides[3];
  long long sink_strides[2];
  long long page_table_strides[2];

  float scale;
  int batch;
  int q_heads;
  int kv_heads;
  int group;  // q_heads / kv_heads
  int q_len;
  int kv_len;
  int sinks_per_head;
  int q_tiles;
  int total_tiles;
  // sm_80 only: rows are contiguous and begin at multiples of 16 bytes.
  int vector_q;
  int vector_k;
  int vector_v;
  int vector_out;         // also for the residual
  int heads_per_section;  // heads whose K and V share the L2 cache: scheduled together

  // The low and the high half of the seed, and the numbers of the first batch and of the first query head. If
  // FL_DROPOUT_WORDS is set, that many of these words come from the device's memory instead.
  unsigned dropout_words[4];
  const unsigned* device_dropout_words;
  int device_dropout_count;
  // A key stays in a row if its random word is at least the threshold.
  unsigned dropout_threshold;
  float dropout_factor;  // 1 without dropout
  // Which keys stay, if the problem has a keep mask. A stride is 0 along a dimension of size 1.
  const unsigned char* keep;
  long long keep_strides[4];

  int zero;  // always 0; NVRTC cannot know that, and folds nothing with it

  int pages;  // the number of pages, if k and v are paged

  int splits;  // decode only: blocks among which the keys of a unit are divided, at most kMostSplits

#if FL_CAPTURE_COUNT > 0
  CaptureArgument captures[FL_CAPTURE_COUNT];
#endif
};

}  // namespace flashlift::cuda
