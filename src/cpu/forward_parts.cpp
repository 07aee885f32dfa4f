#include "cpu/forward_parts.h"

#include <algorithm>
#include <new>

#include "support/rounding.h"

namespace flashlift::cpu {
namespace {

// After this many successive tiles that could not be trimmed, the search stops.
constexpr int kTrimTries = 8;

// Partial tiles are trimmed to multiples of this many keys: whole vectors, in an even number, which preserves the order
// of a row's sums.
constexpr int64_t kTrimColumns = 32;
// With dropout, a multiple of the numbers that its generator makes from one counter.
constexpr int64_t kDropoutColumns = 64;
static_assert(ForwardConfig{}.kv_tile % kDropoutColumns == 0);

// The number of parts in all lists together. A call that exceeds it takes so long that sharing the lists saves little.
constexpr int64_t kSharedParts = 4096;

}  // namespace

bool PartList::claim(int64_t rows) {
  State expected = State::kEmpty;
  if (!state_.compare_exchange_strong(expected, State::kClaimed, std::memory_order_relaxed)) {
    return false;
  }
  rows_ = rows;
  return true;
}

void PartList::add(std::span<const Part> parts) {
  const auto count = static_cast<int64_t>(parts.size());
  if (count_ + count <= capacity_) {
    std::copy(parts.begin(), parts.end(), parts_ + count_);
  }
  count_ += count;
}

void PartList::finish() {
  if (count_ <= capacity_) {
    state_.store(State::kReady, std::memory_order_release);
  }
}

size_t SharedParts::bytes(const Problem& problem, const Partition& partition) {
  const bool has_programs = problem.mask_mod || problem.score_mod;
  const int64_t lists = partition.q_tiles();
  if (!has_programs || partition.splits() > 1 || lists == partition.tasks() || lists > kSharedParts) {
    return 0;
  }
  return static_cast<size_t>(lists) * sizeof(PartList) + static_cast<size_t>(kSharedParts) * sizeof(Part);
}

SharedParts::SharedParts(std::byte* memory, const Problem& problem, const Partition& partition,
                         const visits::Visits& visits) {
  if (bytes(problem, partition) == 0 || visits.all_full() || visits.depends_on_b() || visits.depends_on_h()) {
    return;
  }
  const int64_t lists = partition.q_tiles();
  const int64_t capacity = kSharedParts / lists;
  auto* parts = reinterpret_cast<Part*>(memory);
  lists_ = reinterpret_cast<PartList*>(parts + kSharedParts);
  for (int64_t i = 0; i < lists; ++i) {
    new (lists_ + i) PartList(parts + i * capacity, capacity);
  }
}

PartList* SharedParts::of(const Task& task) const { return lists_ == nullptr ? nullptr : lists_ + task.q_tile; }

PartFinder::PartFinder(const ForwardCall& call, const Task& task, visits::VisitRow* visits, PartList* shared)
    : call_(call),
      task_(task),
      kv_tile_(call.kernel.config().kv_tile),
      groups_(divide_up(task.rows(), kVisitRows)),
      visits_(visits),
      block_(-1) {
  if (shared != nullptr) {
    known_ = shared->ready(task.rows());
    is_known_ = !known_.empty();
    if (is_known_) {
      return;
    }
    filled_ = shared->claim(task.rows()) ? shared : nullptr;
  }
  for (int64_t i = 0; i < groups_; ++i) {
    const visits::TileBox rows = box(i * kVisitRows, std::min((i + 1) * kVisitRows, task_.rows()));
    call_.visits.row(rows.b, rows.h_begin, rows.h_end, rows.q_begin, rows.q_end, kv_tile_, visits_[i]);
  }
}

std::span<const Part> PartFinder::next() {
  if (is_known_) {
    size_t count = 0;
    while (count < known_.size() && known_[count].block == known_[0].block) {
      ++count;
    }
    const std::span<const Part> parts = known_.first(count);
    known_ = known_.subspan(count);
    return parts;
  }
  Found& found = found_[turn_];
  turn_ = 1 - turn_;
  found.count = 0;
  while (found.count == 0 && (block_ = block_after(block_)) * kv_tile_ < call_.sizes.kv_len) {
    find(block_, found);
  }
  const std::span<const Part> parts(found.parts, static_cast<size_t>(found.count));
  if (filled_ != nullptr && !parts.empty()) {
    filled_->add(parts);
  } else if (filled_ != nullptr) {
    filled_->finish();
    filled_ = nullptr;
  }
  return parts;
}

// The bounding box of rows, which may be of several heads. Its keys are not set.
visits::TileBox PartFinder::box(int64_t row_begin, int64_t row_end) const {
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

visits::TileKind PartFinder::kind_at(int64_t group, int64_t block) {
  const std::vector<visits::TileRun>& runs = visits_[group].runs;
  size_t& next = next_run_[group];
  while (next < runs.size() && runs[next].end <= block) {
    ++next;
  }
  return next < runs.size() && runs[next].begin <= block ? runs[next].kind : visits::TileKind::kSkipped;
}

int64_t PartFinder::block_after(int64_t block) const {
  int64_t next = divide_up(call_.sizes.kv_len, kv_tile_);
  for (int64_t i = 0; i < groups_; ++i) {
    const std::vector<visits::TileRun>& runs = visits_[i].runs;
    for (size_t run = next_run_[i]; run < runs.size(); ++run) {
      // The split's first block that is neither before the run nor visited already.
      const int64_t first = std::max(runs[run].begin, block + 1) - task_.split;
      const int64_t own = divide_up(std::max<int64_t>(first, 0), task_.splits) * task_.splits + task_.split;
      if (own < runs[run].end) {
        next = std::min(next, own);
        break;
      }
    }
  }
  return next;
}

void PartFinder::Found::add(const Part& part) {
  if (count > 0 && part.continues(parts[count - 1]) &&
      part.row_end - parts[count - 1].row_begin <= kRunGroups * kVisitRows) {
    parts[count - 1].row_end = part.row_end;
  } else {
    parts[count++] = part;
  }
}

// Removes the first and last keys that no row sees. Returns false if none is left.
bool PartFinder::trim_columns(Part& part) {
  const int64_t step = call_.dropout.is_active() ? kDropoutColumns : kTrimColumns;
  visits::TileBox tile = box(part.row_begin, part.row_end);
  const auto skipped = [&](int64_t begin, int64_t end) {
    tile.kv_begin = part.block * kv_tile_ + begin;
    tile.kv_end = part.block * kv_tile_ + end;
    return call_.visits.classify(tile, visits_[0].scratch) == visits::TileKind::kSkipped;
  };
  int64_t begin = part.column;
  int64_t end = part.column + part.columns;
  while (begin < end && skipped(begin, std::min(begin + step, end))) {
    begin += step;
  }
  const auto last = [&] { return (end - 1) / step * step; };
  while (begin < end && last() > begin && skipped(last(), end)) {
    end = last();
  }
  part.column = begin;
  part.columns = end - begin;
  return part.columns > 0;
}

// Adds the trimmed parts of a partial tile, one for each few rows.
void PartFinder::add_trimmed(const Part& whole, Found& found) {
  bool smaller = false;
  for (int64_t row = whole.row_begin; row < whole.row_end; row += kTrimRows) {
    Part part = whole;
    part.row_begin = row;
    part.row_end = std::min(row + kTrimRows, whole.row_end);
    const bool needed = trim_columns(part);
    smaller = smaller || part.columns < whole.columns;
    if (needed) {
      found.add(part);
    }
  }
  untrimmed_ = smaller ? 0 : untrimmed_ + 1;
}

void PartFinder::find(int64_t block, Found& found) {
  const int64_t columns = std::min(kv_tile_, call_.sizes.kv_len - block * kv_tile_);
  for (int64_t group = 0; group < groups_; ++group) {
    const visits::TileKind kind = kind_at(group, block);
    const Part whole{.block = block,
                     .row_begin = group * kVisitRows,
                     .row_end = std::min((group + 1) * kVisitRows, task_.rows()),
                     .column = 0,
                     .columns = columns,
                     .partial = kind == visits::TileKind::kPartial};
    if (whole.partial && untrimmed_ < kTrimTries) {
      add_trimmed(whole, found);
    } else if (kind != visits::TileKind::kSkipped) {
      found.add(whole);
    }
  }
}

}  // namespace flashlift::cpu
