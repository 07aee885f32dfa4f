#include "cpu/partition.h"

#include <algorithm>

#include "support/rounding.h"

namespace flashlift::cpu {
namespace {

// With fewer rows, the packing of keys costs too much for each row. Tiles are multiples of this.
constexpr int64_t kMinRows = 48;
// If a decode step is split over its keys, this gives enough tasks for the largest sockets.
constexpr int64_t kSplitTasks = 32;
constexpr int64_t kSplitMinKeys = 512;

}  // namespace

Partition::Partition(const CallSizes& sizes, const ForwardConfig& config, int concurrency) : sizes_(sizes) {
  const int64_t max_rows = config.q_tile;
  const int64_t pairs = sizes.batch * sizes.kv_heads;
  const int64_t rows_per_pair = sizes.group() * sizes.q_len;
  if (pairs == 0 || rows_per_pair == 0) {
    return;
  }
  // Smaller tiles if there would be too few tasks to load the threads evenly.
  const int64_t wanted = concurrency > 1 ? divide_up(pairs * rows_per_pair, int64_t{4} * concurrency) : max_rows;
  const int64_t rows = std::clamp(round_up(wanted, kMinRows), kMinRows, max_rows);
  // Tiles of equal sizes: a small last tile would pack all keys for a few rows.
  q_per_tile_ = std::min(sizes.q_len, round_up(divide_up(sizes.q_len, divide_up(sizes.q_len, rows)), kMinRows));
  heads_per_tile_ = std::clamp<int64_t>(rows / sizes.q_len, 1, sizes.group());
  head_tiles_ = divide_up(sizes.group(), heads_per_tile_);
  q_tiles_ = divide_up(sizes.q_len, q_per_tile_);

  if (rows_per_pair <= kSplitMaxRows) {
    const int64_t wanted_splits =
        config.splits > 0 ? config.splits : std::min(divide_up(kSplitTasks, pairs), sizes.kv_len / kSplitMinKeys);
    splits_ = std::clamp<int64_t>(wanted_splits, 1, std::max<int64_t>(divide_up(sizes.kv_len, config.kv_tile), 1));
  }
  tasks_ = pairs * head_tiles_ * q_tiles_ * splits_;
  together_ = std::clamp<int64_t>(concurrency, 1, pairs);
}

Task Partition::task(int64_t index) const {
  Task task{};
  task.split = index % splits_;
  task.splits = splits_;
  index /= splits_;
  const int64_t head_tile = index % head_tiles_;
  index /= head_tiles_;
  const int64_t first_pair = index / (together_ * q_tiles_) * together_;
  const int64_t pairs = std::min(together_, sizes_.batch * sizes_.kv_heads - first_pair);
  index -= first_pair * q_tiles_;
  const int64_t pair = first_pair + index % pairs;
  task.g = pair % sizes_.kv_heads;
  task.b = pair / sizes_.kv_heads;
  task.q_tile = q_tiles_ - 1 - index / pairs;

  const int64_t first = head_tile * heads_per_tile_;
  task.h_begin = task.g * sizes_.group() + first;
  task.h_count = std::min(heads_per_tile_, sizes_.group() - first);
  task.q_begin = task.q_tile * q_per_tile_;
  task.q_count = std::min(q_per_tile_, sizes_.q_len - task.q_begin);
  return task;
}

}  // namespace flashlift::cpu
