// Which rows and keys of a task meet.
#pragma once

#include <cstdint>

#include "cpu/forward_tile.h"

namespace flashlift::cpu {

// Groups of kVisitRows that go through both products and the softmax together. More would push the scores out of the
// first-level cache, fewer would read the packed keys and values from the second level more often.
inline constexpr int64_t kRunGroups = 2;

// Rows of the task against some of a block's keys, from a whole panel on.
struct Part {
  int64_t row_begin;
  int64_t row_end;
  int64_t column;
  int64_t columns;
  bool partial;

  int64_t rows() const { return row_end - row_begin; }
  bool continues(const Part& other) const {
    return row_begin == other.row_end && column == other.column && columns == other.columns && partial == other.partial;
  }
};

class PartFinder {
 public:
  // `visits` has room for each group of rows.
  PartFinder(const ForwardCall& call, const Task& task, plan::VisitRow* visits);

  // Blocks are asked for in rising order.
  plan::TileKind kind_at(int64_t group, int64_t block);
  // What the rows need of a block, in the order of the rows, at most one part a group; returns how many there are.
  int find(int64_t block, int64_t columns, Part (&parts)[kMaxVisitGroups]);
  // The next block that some rows visit, or one behind the last.
  int64_t block_after(int64_t block) const;

 private:
  plan::TileBox box(int64_t row_begin, int64_t row_end) const;
  bool trim(int64_t kv_begin, Part& part);

  const ForwardCall& call_;
  const Task& task_;
  int64_t kv_tile_;
  int64_t groups_;
  plan::VisitRow* visits_;  // of each group
  size_t next_run_[kMaxVisitGroups] = {};
  int untrimmed_ = 0;  // partial tiles in a row that could not be made smaller
};

}  // namespace flashlift::cpu
