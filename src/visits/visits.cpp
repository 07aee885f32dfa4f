#include "visits/visits.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "score/intervals.h"
#include "support/rounding.h"

namespace flashlift::visits {
namespace {

void analyse(const Program& program, const Problem& problem, std::span<const TensorView> captures,
             const score::IntervalProgram::Domain& domain, score::IntervalProgram& result) {
  TensorView read[kMaxCaptures];
  size_t count = 0;
  for (const Capture& capture : program.captures) {
    const auto found = std::find_if(problem.captures.begin(), problem.captures.end(),
                                    [&](const Capture& other) { return other.name == capture.name; });
    read[count++] = captures[found - problem.captures.begin()];
  }
  result.bind(program, {read, count}, domain);
}

void append(std::vector<TileRun>& runs, const TileRun& run) {
  if (!runs.empty() && runs.back().end == run.begin && runs.back().kind == run.kind) {
    runs.back().end = run.end;
  } else {
    runs.push_back(run);
  }
}

}  // namespace

void Visits::bind(const Problem& problem, int64_t batch, int64_t q_len, int64_t kv_len,
                  std::span<const TensorView> captures) {
  q_len_ = q_len;
  kv_len_ = kv_len;
  masks_ = scores_mask_ = mask_searches_ = depends_on_b_ = depends_on_h_ = false;
  if (batch == 0 || q_len == 0 || kv_len == 0) {
    return;  // no tiles
  }
  const score::IntervalProgram::Domain domain{
      .batch = batch, .heads = problem.q_heads, .q_len = q_len, .kv_len = kv_len};
  if (problem.mask_mod) {
    analyse(*problem.mask_mod, problem, captures, domain, mask_);
    masks_ = score::truth(mask_.whole()) != score::Truth::kTrue;
    mask_searches_ = mask_.searches();
  }
  if (problem.score_mod) {
    analyse(*problem.score_mod, problem, captures, domain, score_);
    scores_mask_ = !(score_.whole().real_lo > -INFINITY);
  }
  const auto depends_on = [&](Op input) {
    return (masks_ && mask_.depends_on(input)) || (scores_mask_ && score_.depends_on(input));
  };
  depends_on_b_ = depends_on(Op::k_b);
  depends_on_h_ = depends_on(Op::k_h);
}

void Visits::reserve(VisitRow& row, int64_t tiles) const {
  row.runs.reserve(all_full() ? 1 : static_cast<size_t>(tiles));
  const size_t scratch = std::max(masks_ ? mask_.scratch_size() : 0, scores_mask_ ? score_.scratch_size() : 0);
  if (row.scratch.size() < scratch) {
    row.scratch.resize(scratch);
  }
}

TileKind Visits::decide(const TileBox& box, bool is_tile, std::vector<score::Interval>& scratch) const {
  const score::Box ranges{.b = {box.b, box.b},
                          .h = {box.h_begin, box.h_end - 1},
                          .q = {box.q_begin, box.q_end - 1},
                          .kv = {box.kv_begin, box.kv_end - 1}};
  const score::Truth kept = masks_ ? score::truth(mask_.evaluate(ranges, scratch)) : score::Truth::kTrue;
  if (kept == score::Truth::kFalse) {
    return TileKind::kSkipped;
  }
  if (scores_mask_) {
    const score::Interval value = score_.evaluate(ranges, scratch);
    if (value.real_hi == -INFINITY && value.has_number() && !value.may_be_nan) {
      return TileKind::kSkipped;
    }
    if (!is_tile && value.real_lo == -INFINITY) {
      return TileKind::kPartial;
    }
  }
  return kept == score::Truth::kTrue ? TileKind::kFull : TileKind::kPartial;
}

TileKind Visits::classify(const TileBox& box, std::vector<score::Interval>& scratch) const {
  const TileKind kind = decide(box, true, scratch);
  TileBox parts = box;
  return kind == TileKind::kPartial && mask_searches_ && skips_each_part(parts, scratch) ? TileKind::kSkipped : kind;
}

// If a tile's queries belong to two packed sequences, the interval of "end of one minus begin of the other" spans both,
// so that a causal mask seems undecided, although it is decided within each sequence. This function therefore splits
// the queries. It stops at the first part that is not skipped: a visited tile costs a number of evaluations that is at
// most the logarithm of its number of queries.
bool Visits::skips_each_part(TileBox& box, std::vector<score::Interval>& scratch) const {
  if (box.q_end - box.q_begin < 2) {
    return false;
  }
  const int64_t begin = box.q_begin;
  const int64_t end = box.q_end;
  const int64_t middle = begin + (end - begin) / 2;
  bool skipped = true;
  for (const auto& [first, last] : {std::pair(begin, middle), std::pair(middle, end)}) {
    box.q_begin = first;
    box.q_end = last;
    const TileKind kind = decide(box, true, scratch);
    skipped = kind == TileKind::kSkipped || (kind == TileKind::kPartial && skips_each_part(box, scratch));
    if (!skipped) {
      break;
    }
  }
  box.q_begin = begin;
  box.q_end = end;
  return skipped;
}

// Splits undecided ranges in halves. A run of n tiles costs about log n evaluations, so that causal masks and windows
// cost almost nothing. A mask that alternates costs at most two evaluations for each tile.
void Visits::descend(TileBox& box, int64_t TileBox::* begin, int64_t TileBox::* end, int64_t length, int64_t tile,
                     int64_t first, int64_t last, VisitRow& row) const {
  box.*begin = first * tile;
  box.*end = std::min(last * tile, length);
  const bool is_tile = last - first == 1;
  const TileKind kind = is_tile ? classify(box, row.scratch) : decide(box, false, row.scratch);
  if (kind == TileKind::kSkipped) {
    return;
  }
  if (kind == TileKind::kFull || is_tile) {
    append(row.runs, {first, last, kind});
    return;
  }
  const auto half = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(last - first - 1)));
  descend(box, begin, end, length, tile, first, first + half, row);
  descend(box, begin, end, length, tile, first + half, last, row);
}

void Visits::row(int64_t b, int64_t h_begin, int64_t h_end, int64_t q_begin, int64_t q_end, int64_t kv_tile,
                 VisitRow& row) const {
  row.runs.clear();
  TileBox box{.b = b, .h_begin = h_begin, .h_end = h_end, .q_begin = q_begin, .q_end = q_end};
  if (kv_len_ > 0) {
    descend(box, &TileBox::kv_begin, &TileBox::kv_end, kv_len_, kv_tile, 0, divide_up(kv_len_, kv_tile), row);
  }
}

void Visits::column(int64_t b, int64_t h_begin, int64_t h_end, int64_t kv_begin, int64_t kv_end, int64_t q_tile,
                    VisitRow& row) const {
  row.runs.clear();
  TileBox box{.b = b, .h_begin = h_begin, .h_end = h_end, .kv_begin = kv_begin, .kv_end = kv_end};
  if (q_len_ > 0) {
    descend(box, &TileBox::q_begin, &TileBox::q_end, q_len_, q_tile, 0, divide_up(q_len_, q_tile), row);
  }
}

}  // namespace flashlift::visits
