#include "cpu/forward_parts.h"

#include <algorithm>

#include "cpu/trim.h"
#include "support/rounding.h"

namespace flashlift::cpu {
namespace {

// No more tiles are looked at once so many in a row could not be made smaller.
constexpr int kTrimTries = 8;

}  // namespace

PartFinder::PartFinder(const ForwardCall& call, const Task& task, plan::VisitRow* visits)
    : call_(call),
      task_(task),
      kv_tile_(call.kernel.config().kv_tile),
      groups_(divide_up(task.rows(), kVisitRows)),
      visits_(visits) {
  for (int64_t i = 0; i < groups_; ++i) {
    const plan::TileBox rows = box(i * kVisitRows, std::min((i + 1) * kVisitRows, task_.rows()));
    call_.visits.row(rows.b, rows.h_begin, rows.h_end, rows.q_begin, rows.q_end, kv_tile_, visits_[i]);
  }
}

// Rows of several heads: the box around them. Without keys.
plan::TileBox PartFinder::box(int64_t row_begin, int64_t row_end) const {
  const int64_t first_head = row_begin / task_.q_count;
  const int64_t last_head = (row_end - 1) / task_.q_count;
  const bool one_head = first_head == last_head;
  const int64_t q_first = one_head ? row_begin % task_.q_count : 0;
  const int64_t q_last = one_head ? (row_end - 1) % task_.q_count : task_.q_count - 1;
  return {.b = task_.b,
          .h_begin = task_.h_begin + first_head,
          .h_end = task_.h_begin + last_head + 1,
          .q_begin = task_.q_begin + q_first,
          .q_end = task_.q_begin + q_last + 1};
}

plan::TileKind PartFinder::kind_at(int64_t group, int64_t block) {
  const std::vector<plan::TileRun>& runs = visits_[group].runs;
  size_t& next = next_run_[group];
  while (next < runs.size() && runs[next].end <= block) {
    ++next;
  }
  return next < runs.size() && runs[next].begin <= block ? runs[next].kind : plan::TileKind::kSkipped;
}

int64_t PartFinder::block_after(int64_t block) const {
  int64_t next = divide_up(task_.kv_end, kv_tile_);
  for (int64_t i = 0; i < groups_; ++i) {
    const std::vector<plan::TileRun>& runs = visits_[i].runs;
    for (size_t run = next_run_[i]; run < runs.size(); ++run) {
      if (runs[run].end > block + 1) {
        next = std::min(next, std::max(runs[run].begin, block + 1));
        break;
      }
    }
  }
  return next;
}

// Leaves out the half of a partial tile's keys that none of its rows sees, and the first and last rows that see none of
// the rest; false if that is all.
bool PartFinder::trim(int64_t kv_begin, Part& part) {
  static_assert(ForwardConfig{}.kv_tile / 2 % 64 == 0, "whole panels, and whole counters of dropout");
  const auto skipped = [&](int64_t row_begin, int64_t row_end, int64_t column, int64_t columns) {
    plan::TileBox tile = box(row_begin, row_end);
    tile.kv_begin = kv_begin + column;
    tile.kv_end = tile.kv_begin + columns;
    return call_.visits.classify(tile, visits_[0].scratch) == plan::TileKind::kSkipped;
  };
  const Part whole = part;
  const int64_t half = kv_tile_ / 2;
  if (part.columns > half) {
    if (skipped(part.row_begin, part.row_end, 0, half)) {
      part.column = half;
      part.columns -= half;
    } else if (skipped(part.row_begin, part.row_end, half, part.columns - half)) {
      part.columns = half;
    }
  }
  const RowRange rows = trim_rows({part.row_begin, part.row_end}, [&](int64_t begin, int64_t end) {
    return skipped(begin, end, part.column, part.columns);
  });
  part.row_begin = rows.begin;
  part.row_end = rows.end;
  untrimmed_ = part.columns == whole.columns && part.rows() == whole.rows() ? untrimmed_ + 1 : 0;
  return part.row_begin < part.row_end;
}

int PartFinder::find(int64_t block, int64_t columns, Part (&parts)[kMaxVisitGroups]) {
  int count = 0;
  for (int64_t group = 0; group < groups_; ++group) {
    const plan::TileKind kind = kind_at(group, block);
    Part part{.row_begin = group * kVisitRows,
              .row_end = std::min((group + 1) * kVisitRows, task_.rows()),
              .column = 0,
              .columns = columns,
              .partial = kind == plan::TileKind::kPartial};
    if (kind == plan::TileKind::kSkipped ||
        (part.partial && untrimmed_ < kTrimTries && !trim(block * kv_tile_, part))) {
      continue;
    }
    if (count > 0 && part.continues(parts[count - 1]) &&
        part.row_end - parts[count - 1].row_begin <= kRunGroups * kVisitRows) {
      parts[count - 1].row_end = part.row_end;
    } else {
      parts[count++] = part;
    }
  }
  return count;
}

}  // namespace flashlift::cpu
