// The division of a forward call into tasks.
#pragma once

#include <cstdint>

#include "cpu/forward.h"
#include "flashlift/problem.h"

namespace flashlift::cpu {

// A call with up to that many rows counts as decoding: its keys may be split among tasks.
inline constexpr int64_t kSplitMaxRows = 128;

// Sizes of one call.
struct CallSizes {
  int64_t batch;
  int64_t q_heads;
  int64_t kv_heads;
  int64_t q_len;
  int64_t kv_len;

  int64_t group() const { return q_heads / kv_heads; }
};

// The rows and keys of one task: queries [q_begin, q_begin + q_count) of heads [h_begin, h_begin + h_count), which
// share the key-value head g, against the blocks of keys split, split + splits, and so on.
struct Task {
  int64_t b;
  int64_t g;
  int64_t h_begin;
  int64_t h_count;
  int64_t q_tile;
  int64_t q_begin;
  int64_t q_count;
  int64_t split;
  int64_t splits;

  int64_t rows() const { return h_count * q_count; }
};

// A row's result has the same bits in any tile, so that the tiles may depend on the number of threads. Splits of the
// keys change the order of sums, so that they depend on the problem alone. Splits take turns at the blocks of keys: a
// mask that leaves few of them, such as the length of a sequence whose page table has room for more, leaves each split
// as many as the others.
class Partition {
 public:
  Partition(const CallSizes& sizes, const ForwardConfig& config, int concurrency);

  int64_t tasks() const { return tasks_; }
  int64_t splits() const { return splits_; }
  int64_t q_tiles() const { return q_tiles_; }
  // Rows of the largest task.
  int64_t tile_rows() const { return heads_per_tile_ * q_per_tile_; }
  // Tasks of equal index / splits() are the splits of the same rows. As many key-value heads as there are threads go
  // together, so that a head's keys and values may stay in a thread's cache for all of its queries. With causal masks
  // in mind, the last queries, which have the most keys, come first.
  Task task(int64_t index) const;

 private:
  CallSizes sizes_;
  int64_t heads_per_tile_ = 1;
  int64_t q_per_tile_ = 1;
  int64_t head_tiles_ = 0;
  int64_t q_tiles_ = 0;
  int64_t splits_ = 1;
  int64_t together_ = 1;
  int64_t tasks_ = 0;
};

}  // namespace flashlift::cpu
