// Determines the tiles of the score plane that a kernel has to visit, from the programs by interval analysis, without
// any N x N data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flashlift/problem.h"
#include "score/intervals.h"

namespace flashlift::visits {

// A box of the score plane within one batch; all ranges are half open and not empty, and lie within the lengths.
struct TileBox {
  int64_t b = 0;
  int64_t h_begin = 0;
  int64_t h_end = 0;
  int64_t q_begin = 0;
  int64_t q_end = 0;
  int64_t kv_begin = 0;
  int64_t kv_end = 0;
};

enum class TileKind : uint8_t {
  kSkipped,  // no score of the box is kept
  kFull,     // every score is kept: mask_mod need not run (score_mod still does)
  kPartial,  // both occur, or it could not be proved otherwise
};

// Neighbouring tiles [begin, end) of one kind.
struct TileRun {
  int64_t begin = 0;
  int64_t end = 0;
  TileKind kind = TileKind::kFull;
  bool operator==(const TileRun&) const = default;
};

// The visited tiles of one row (or column) of tiles in ascending order, without skipped ones. A thread reuses it for
// all rows, so that no memory is allocated.
struct VisitRow {
  std::vector<TileRun> runs;
  std::vector<score::Interval> scratch;
};

// Bound to one call's lengths and captured tensors. Immutable, so that any thread may use it.
//
// A score_mod that provably returns -inf masks, too. This assumes that the score before it is finite: score + (-inf)
// counts as masked.
class Visits {
 public:
  // `captures` are the call's verified tensors in the order of problem.captures; their memory must outlive this object.
  // Takes time linear in the number of elements of captured tensors that q or kv index in one dimension, and none for
  // others.
  Visits(const Problem& problem, int64_t batch, int64_t q_len, int64_t kv_len, std::span<const TensorView> captures) {
    bind(problem, batch, q_len, kv_len, captures);
  }
  Visits() = default;
  // The same for an existing object, reusing its memory.
  void bind(const Problem& problem, int64_t batch, int64_t q_len, int64_t kv_len, std::span<const TensorView> captures);
  // Allocates memory in `row` for rows and columns of up to `tiles` tiles, so that calls for them do not allocate.
  void reserve(VisitRow& row, int64_t tiles) const;

  TileKind classify(const TileBox& box, std::vector<score::Interval>& scratch) const;

  // The key tiles of size kv_tile that the queries [q_begin, q_end) of these heads visit.
  void row(int64_t b, int64_t h_begin, int64_t h_end, int64_t q_begin, int64_t q_end, int64_t kv_tile,
           VisitRow& row) const;
  // The query tiles of size q_tile that visit the keys [kv_begin, kv_end), for backward kernels.
  void column(int64_t b, int64_t h_begin, int64_t h_end, int64_t kv_begin, int64_t kv_end, int64_t q_tile,
              VisitRow& row) const;

  // If false, all batches (heads) have the same tiles.
  bool depends_on_b() const { return depends_on_b_; }
  bool depends_on_h() const { return depends_on_h_; }
  // Whether every tile is full, so that no other function needs to be called.
  bool all_full() const { return !masks_ && !scores_mask_; }

 private:
  // The kind of a box, where kPartial may also mean "parts of it may be skipped".
  TileKind decide(const TileBox& box, bool is_tile, std::vector<score::Interval>& scratch) const;
  // Whether all parts of an undecided box are skipped, after splitting its queries.
  bool skips_each_part(TileBox& box, std::vector<score::Interval>& scratch) const;
  void descend(TileBox& box, int64_t TileBox::* begin, int64_t TileBox::* end, int64_t length, int64_t tile,
               int64_t first, int64_t last, VisitRow& row) const;

  int64_t q_len_ = 0;
  int64_t kv_len_ = 0;
  score::IntervalProgram mask_;
  score::IntervalProgram score_;
  bool masks_ = false;        // mask_ is bound, and masks something
  bool scores_mask_ = false;  // score_ likewise
  bool mask_searches_ = false;
  bool depends_on_b_ = false;
  bool depends_on_h_ = false;
};

}  // namespace flashlift::visits
