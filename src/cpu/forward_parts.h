// Determines which rows of a task see which keys.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/forward_tile.h"
#include "cpu/trim.h"

namespace flashlift::cpu {

// The number of groups of kVisitRows that go through both products and the softmax together. More would evict the
// scores from the L1 cache, fewer would read the packed keys and values from the L2 cache more often.
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

// The parts of a task, block by block, which other tasks with the same rows of other heads reuse.
class PartList {
 public:
  PartList(Part* parts, int64_t capacity) : parts_(parts), capacity_(capacity) {}

  // The parts of a task with that many rows, if a task has found them.
  std::span<const Part> ready(int64_t rows) const {
    const bool is_ready = state_.load(std::memory_order_acquire) == State::kReady && rows_ == rows;
    return is_ready ? std::span<const Part>(parts_, static_cast<size_t>(count_)) : std::span<const Part>();
  }
  // True for the task that fills the list.
  bool claim(int64_t rows);
  void add(std::span<const Part> parts);
  void finish();

 private:
  enum class State : uint8_t { kEmpty, kClaimed, kReady };

  std::atomic<State> state_{State::kEmpty};
  Part* parts_;
  int64_t capacity_;
  int64_t rows_ = 0;
  int64_t count_ = 0;  // larger than the capacity if there was no room
};

// One list per tile of queries, if masks depend neither on the batch nor on the head: finding the parts of 8 heads with
// documents of 256 tokens separately took 7 % of their time.
class SharedParts {
 public:
  static size_t bytes(const Problem& problem, const Partition& partition);

  // `memory` must have that many bytes.
  SharedParts(std::byte* memory, const Problem& problem, const Partition& partition, const visits::Visits& visits);
  // Null: the task must find its own.
  PartList* of(const Task& task) const;

 private:
  PartList* lists_ = nullptr;
};

class PartFinder {
 public:
  // `visits` has room for each group of rows; `shared` may be null.
  PartFinder(const ForwardCall& call, const Task& task, visits::VisitRow* visits, PartList* shared);

  // For tasks of few rows, instead of next(): the first of the task's blocks after this one that some row visits
  // (beyond all keys if there is none), and the part of a block that group 0 needs. Call both for blocks in ascending
  // order.
  int64_t block_after(int64_t block) const;
  visits::TileKind first_kind(int64_t block) { return kind_at(0, block); }
  // The parts of the next visited block in the order of their rows, each within one or two groups; empty after the last
  // block. They stay valid until the call after the next one.
  std::span<const Part> next();

 private:
  static constexpr int64_t kMaxParts = kMaxVisitGroups * (kVisitRows / kTrimRows);
  static_assert(kVisitRows % kTrimRows == 0);

  // The parts of one block, during the search.
  struct Found {
    Part parts[kMaxParts];
    int count = 0;

    void add(const Part& part);
  };

  visits::TileBox box(int64_t row_begin, int64_t row_end) const;
  visits::TileKind kind_at(int64_t group, int64_t block);
  void find(int64_t block, Found& found);
  void add_trimmed(const Part& whole, Found& found);
  bool trim_columns(Part& part);

  const ForwardCall& call_;
  const Task& task_;
  int64_t kv_tile_;
  int64_t groups_;
  visits::VisitRow* visits_;  // of each group
  size_t next_run_[kMaxVisitGroups] = {};
  int untrimmed_ = 0;  // consecutive partial tiles that could not be cut
  int64_t block_;      // the last one found
  Found found_[2];
  int turn_ = 0;
  std::span<const Part> known_;  // the rest of a list that another task has found
  bool is_known_ = false;
  PartList* filled_ = nullptr;  // the list that this task fills
};

}  // namespace flashlift::cpu
