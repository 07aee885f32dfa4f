#include <algorithm>

#include "flashlift/attention.h"
#include "support/error.h"
#include "support/rounding.h"
#include "visits/visits.h"

namespace flashlift {

Result<TileCounts> count_tiles(const Problem& problem, const std::vector<TensorView>& captures, int64_t q_tile,
                               int64_t kv_tile) {
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));
  if (q_tile < 1 || kv_tile < 1) {
    return invalid_argument("tiles have at least one query and one key, got {} and {}", q_tile, kv_tile);
  }
  FLASHLIFT_RETURN_IF_ERROR(verify_captures(problem, captures));
  int64_t tiles = problem.batch;
  for (const int64_t count : {problem.q_heads, divide_up(problem.q_len, q_tile), divide_up(problem.kv_len, kv_tile)}) {
    if (__builtin_mul_overflow(tiles, count, &tiles)) {
      return invalid_argument("{} by {} tiles are more than 2^63 - 1; count larger tiles", q_tile, kv_tile);
    }
  }
  const visits::Visits visits(problem, problem.batch, problem.q_len, problem.kv_len, captures);
  const int64_t batches = visits.depends_on_b() ? problem.batch : std::min<int64_t>(problem.batch, 1);
  const int64_t heads = visits.depends_on_h() ? problem.q_heads : 1;
  TileCounts counts{.q_tile = q_tile, .kv_tile = kv_tile};
  visits::VisitRow row;
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t q = 0; q < problem.q_len; q += q_tile) {
        visits.row(b, h, h + 1, q, std::min(q + q_tile, problem.q_len), kv_tile, row);
        for (const visits::TileRun& run : row.runs) {
          (run.kind == visits::TileKind::kFull ? counts.full : counts.partial) += run.end - run.begin;
        }
      }
    }
  }
  const int64_t copies = (visits.depends_on_b() ? 1 : problem.batch) * (visits.depends_on_h() ? 1 : problem.q_heads);
  counts.full *= copies;
  counts.partial *= copies;
  counts.skipped = tiles - counts.full - counts.partial;
  return counts;
}

}  // namespace flashlift
