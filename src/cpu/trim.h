// Finds rows of a partial tile that need not be computed.
#pragma once

#include <algorithm>
#include <cstdint>

namespace flashlift::cpu {

// The number of rows that are tested together: a multiple of every micro-kernel's rows.
inline constexpr int64_t kTrimRows = 12;

struct RowRange {
  int64_t begin;
  int64_t end;
};

// Removes the first and last rows for which skipped(begin, end) is true; no row may be left.
template <typename Skipped>
RowRange trim_rows(RowRange rows, const Skipped& skipped) {
  const RowRange all = rows;
  const auto skips = [&](int64_t row) { return skipped(row, std::min(row + kTrimRows, all.end)); };
  while (rows.begin < rows.end && skips(rows.begin)) {
    rows.begin += kTrimRows;
  }
  const auto last = [&] { return all.begin + (rows.end - 1 - all.begin) / kTrimRows * kTrimRows; };
  while (rows.begin < rows.end && skips(last())) {
    rows.end = last();
  }
  return rows;
}

}  // namespace flashlift::cpu
