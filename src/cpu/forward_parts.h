// Which rows and keys of a task meet.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/forward_tile.h"
#include "cpu/trim.h"

namespace flashlift::cpu {

// Groups of kVisitRows that go through both products and the softmax together. More would push the scores out of the
// first-level cache, fewer would read the packed keys and values from the second level more often.
inline constexpr int64_t kRunGroups = 2;

// Rows of the task against some of a block's keys.
struct Part {
  int64_t block;
  int64_t row_begin;
  int64_t row_end;
  int64_t column;
  int64_t columns;
  bool partial;

  bool operator==(const Part&) const = default;
  int64_t rows() const { return row_end - row_begin; }
  bool continues(const Part& other) const {
    return row_begin == other.row_end && column == other.column && columns == other.columns && partial == other.partial;
  }
};

// The parts of a task, block by block, for other tasks with the same rows of other heads.
class PartList {
 public:
  PartList(Part* parts, int64_t capacity) : parts_(parts), capacity_(capacity) {}

  // The parts of a task with so many rows, if a task has found them.
  std::span<const Part> ready(int64_t rows) const {
    const bool is_ready = state_.load(std::memory_order_acquire) == State::kReady && rows_ == rows;
    return is_ready ? std::span<const Part>(parts_, static_cast<size_t>(count_)) : std::span<const Part>();
  }
  // True for the one task that fills the list.
  bool claim(int64_t rows);
  void add(std::span<const Part> parts);
  void finish();

 private:
  enum class State : uint8_t { kEmpty, kClaimed, kReady };

  std::atomic<State> state_{State::kEmpty};
  Part* parts_;
  int64_t capacity_;
  int64_t rows_ = 0;
  int64_t count_ = 0;  // beyond the capacity: there was no room
};

// A list for each tile of queries, where masks ask neither for the batch nor for the head: finding the parts of 8 heads
// with documents of 256 tokens took 7 % of their time.
class SharedParts {
 public:
  static size_t bytes(const Problem& problem, const Partition& partition);

  // `memory` has so many bytes.
  SharedParts(std::byte* memory, const Problem& problem, const Partition& partition, const visits::Visits& visits);
  // Null: the task is to find its own.
  PartList* of(const Task& task) const;

 private:
  PartList* lists_ = nullptr;
};

class PartFinder {
 public:
  // `visits` has room for each group of rows; `shared` may be null.
  PartFinder(const ForwardCall& call, const Task& task, visits::VisitRow* visits, PartList* shared);

  // What group 0 needs of a block; blocks are asked for in rising order. For tasks of few rows, instead of next().
  visits::TileKind first_kind(int64_t block) { return kind_at(0, block); }
  // The parts of the next visited block in the order of their rows, each within one or two groups; empty behind the
  // last. They stay until the next but one is asked for.
  std::span<const Part> next();

 private:
  static constexpr int64_t kMaxParts = kMaxVisitGroups * (kVisitRows / kTrimRows);
  static_assert(kVisitRows % kTrimRows == 0);

  // Parts of one block while they are being found.
  struct Found {
    Part parts[kMaxParts];
    int count = 0;

    void add(const Part& part);
  };

  visits::TileBox box(int64_t row_begin, int64_t row_end) const;
  visits::TileKind kind_at(int64_t group, int64_t block);
  int64_t block_after(int64_t block) const;
  void find(int64_t block, Found& found);
  void add_trimmed(const Part& whole, Found& found);
  bool trim_columns(Part& part);

  const ForwardCall& call_;
  const Task& task_;
  int64_t kv_tile_;
  int64_t groups_;
  visits::VisitRow* visits_;  // of each group
  size_t next_run_[kMaxVisitGroups] = {};
  int untrimmed_ = 0;  // partial tiles in a row that could not be made smaller
  int64_t block_;      // the last one found
  Found found_[2];
  int turn_ = 0;
  std::span<const Part> known_;  // what is left of a list that another task has found
  bool is_known_ = false;
  PartList* filled_ = nullptr;  // the list that this task fills
};

}  // namespace flashlift::cpu
