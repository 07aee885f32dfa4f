// A queue of data that a thread reads next; products prefetch it.
#pragma once

#include <algorithm>
#include <limits>

#include "cpu/tile/kernels.h"
#include "support/rounding.h"

namespace flashlift::cpu {

inline constexpr int64_t kCacheLine = 64;
// About the number of rows that a product of whole panels holds in registers, which determines how often it prefetches.
inline constexpr int64_t kProductRows = 6;

// Adds rows x columns elements. It skips scattered matrices, and everything after the first PrefetchQueue::kMaxPieces
// pieces.
inline void push(PrefetchQueue& prefetches, const MatrixView& matrix, int64_t rows, int64_t columns) {
  const auto size = static_cast<int64_t>(size_in_bytes(matrix.dtype));
  const bool by_row = matrix.column_stride == 1;
  if (rows <= 0 || columns <= 0 || (!by_row && matrix.row_stride != 1)) {
    return;
  }
  const PrefetchQueue::Piece piece{.data = static_cast<const char*>(matrix.data),
                                   .count = by_row ? rows : columns,
                                   .bytes = (by_row ? columns : rows) * size,
                                   .stride = (by_row ? matrix.row_stride : matrix.column_stride) * size};
  if (prefetches.count > 0) {
    PrefetchQueue::Piece& last = prefetches.pieces[prefetches.count - 1];
    if (last.data + last.count * last.stride == piece.data && last.stride == piece.stride &&
        last.bytes == piece.bytes) {
      last.count += piece.count;
      return;
    }
  }
  if (prefetches.count < PrefetchQueue::kMaxPieces) {
    prefetches.pieces[prefetches.count++] = piece;
  }
}

// The number of prefetching steps in a panel's product.
inline int64_t prefetch_steps(int64_t rows, int64_t depth) {
  return divide_up(rows, kProductRows) * divide_up(depth, kPrefetchSteps);
}

// Spreads the prefetches over this many steps.
inline void set_rate(PrefetchQueue& prefetches, int64_t steps) {
  int64_t lines = 0;
  for (int i = prefetches.next; i < prefetches.count; ++i) {
    lines += prefetches.pieces[i].count * divide_up(prefetches.pieces[i].bytes, kCacheLine);
  }
  prefetches.rate = divide_up(lines, std::max<int64_t>(steps, 1));
}

// Prefetches the rest, and empties the queue.
inline void drain(const TileKernels& kernels, PrefetchQueue& prefetches) {
  prefetches.rate = std::numeric_limits<int64_t>::max();
  kernels.bring_near(prefetches);
  prefetches = {};
}

}  // namespace flashlift::cpu
