// What a thread reads next, brought near while it multiplies.
#pragma once

#include <algorithm>
#include <limits>

#include "cpu/tile/kernels.h"
#include "support/rounding.h"

namespace flashlift::cpu {

inline constexpr int64_t kCacheLine = 64;
// Rows of a product of whole panels that stand in registers together, or nearly so: how often it brings lines near.
inline constexpr int64_t kProductRows = 6;

// Adds rows x columns elements. A scattered matrix is left out, and what comes after Upcoming::kMaxPieces others.
inline void expect(Upcoming& upcoming, const MatrixView& matrix, int64_t rows, int64_t columns) {
  const auto size = static_cast<int64_t>(size_in_bytes(matrix.dtype));
  const bool by_row = matrix.column_stride == 1;
  if (rows <= 0 || columns <= 0 || (!by_row && matrix.row_stride != 1)) {
    return;
  }
  const Upcoming::Piece piece{.data = static_cast<const char*>(matrix.data),
                              .count = by_row ? rows : columns,
                              .bytes = (by_row ? columns : rows) * size,
                              .stride = (by_row ? matrix.row_stride : matrix.column_stride) * size};
  if (upcoming.count > 0) {
    Upcoming::Piece& last = upcoming.pieces[upcoming.count - 1];
    if (last.data + last.count * last.stride == piece.data && last.stride == piece.stride &&
        last.bytes == piece.bytes) {
      last.count += piece.count;
      return;
    }
  }
  if (upcoming.count < Upcoming::kMaxPieces) {
    upcoming.pieces[upcoming.count++] = piece;
  }
}

// How often a product of a panel brings lines near.
inline int64_t upcoming_steps(int64_t rows, int64_t depth) {
  return divide_up(rows, kProductRows) * divide_up(depth, kUpcomingSteps);
}

// Spreads all of it over so many steps.
inline void set_pace(Upcoming& upcoming, int64_t steps) {
  int64_t lines = 0;
  for (int i = upcoming.next; i < upcoming.count; ++i) {
    lines += upcoming.pieces[i].count * divide_up(upcoming.pieces[i].bytes, kCacheLine);
  }
  upcoming.pace = divide_up(lines, std::max<int64_t>(steps, 1));
}

// Brings near what is left, and expects nothing any more.
inline void bring_rest_near(const TileKernels& kernels, Upcoming& upcoming) {
  upcoming.pace = std::numeric_limits<int64_t>::max();
  kernels.bring_near(upcoming);
  upcoming = {};
}

}  // namespace flashlift::cpu
