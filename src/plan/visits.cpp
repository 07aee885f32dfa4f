#include "plan/visits.h"

#include <algorithm>

namespace flashlift::plan {

Visits::Visits(const Problem& problem, int64_t, int64_t q_len, int64_t kv_len, std::span<const TensorView>)
    : q_len_(q_len), kv_len_(kv_len), masked_(problem.mask_mod.has_value()) {}

TileKind Visits::classify(const TileBox&, std::vector<score::Interval>&) const {
  return masked_ ? TileKind::kPartial : TileKind::kFull;
}

void Visits::row(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t kv_tile, VisitRow& row) const {
  row.runs.assign(1, {0, (kv_len_ + kv_tile - 1) / kv_tile, masked_ ? TileKind::kPartial : TileKind::kFull});
}

void Visits::column(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t q_tile, VisitRow& row) const {
  row.runs.assign(1, {0, (q_len_ + q_tile - 1) / q_tile, masked_ ? TileKind::kPartial : TileKind::kFull});
}

}  // namespace flashlift::plan
