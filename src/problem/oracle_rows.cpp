#include "problem/oracle_rows.h"

#include <algorithm>
#include <limits>

#include "problem/dropout.h"
#include "problem/elements.h"
#include "problem/sinks.h"

namespace flashlift::problem {

std::vector<TensorView> views_of(const Program& program, const Problem& problem, const AttentionArguments& arguments) {
  std::vector<TensorView> views;
  for (const Capture& capture : program.captures) {
    const auto found = std::find(problem.captures.begin(), problem.captures.end(), capture);
    views.push_back(arguments.captures[found - problem.captures.begin()]);
  }
  return views;
}

OracleRows::OracleRows(const Problem& problem, const AttentionArguments& arguments)
    : problem_(problem), arguments_(arguments), kv_len_(kv_length(problem, arguments)) {
  if (problem.score_mod) {
    score_views_ = views_of(*problem.score_mod, problem, arguments);
    score_mod_.emplace(*problem.score_mod, score_views_);
  }
  if (problem.mask_mod) {
    mask_views_ = views_of(*problem.mask_mod, problem, arguments);
    mask_mod_.emplace(*problem.mask_mod, mask_views_);
  }
}

score::Coordinates OracleRows::coordinates(int64_t b, int64_t h, int64_t i, int64_t j) const {
  return {.b = static_cast<int32_t>(b),
          .h = static_cast<int32_t>(h),
          .q = static_cast<int32_t>(i),
          .kv = static_cast<int32_t>(j),
          .q_len = static_cast<int32_t>(arguments_.q.sizes[2]),
          .kv_len = static_cast<int32_t>(kv_len_)};
}

void OracleRows::compute(int64_t b, int64_t h, int64_t i) {
  scores_.resize(kv_len_);
  products_.assign(kv_len_, 0.0);
  for (int64_t j = 0; j < kv_len_; ++j) {
    const score::Coordinates at = coordinates(b, h, i, j);
    if (mask_mod_ && !mask_mod_->mask_mod(at)) {
      scores_[j] = -std::numeric_limits<double>::infinity();
      continue;
    }
    const int64_t q_offset = row_offset(arguments_.q, b, h, i);
    const int64_t k_offset = key_offset(b, kv_head(h), j);
    double dot = 0;
    for (int64_t d = 0; d < problem_.head_dim; ++d) {
      dot += read_float(arguments_.q, q_offset + d * arguments_.q.strides[3]) *
             read_float(arguments_.k, k_offset + d * arguments_.k.strides[3]);
    }
    products_[j] = problem_.scale * dot;
    scores_[j] = score_mod_ ? score_mod_->score_mod(products_[j], at) : products_[j];
  }
}

int64_t OracleRows::key_offset(const Problem& problem, const AttentionArguments& arguments, const TensorView& view,
                               int64_t b, int64_t g, int64_t j) {
  if (problem.page_size == 0) {
    return row_offset(view, b, g, j);
  }
  const TensorView& table = *arguments.page_table;
  const int64_t entry = b * table.strides[0] + j / problem.page_size * table.strides[1];
  const int64_t page = std::clamp<int64_t>(static_cast<const int32_t*>(table.data)[entry], 0, view.sizes[0] - 1);
  return row_offset(view, page, g, j % problem.page_size);
}

double OracleRows::dropout_factor(int64_t b, int64_t h, int64_t i, int64_t j) const {
  return problem::dropout_factor(problem_, arguments_.dropout_seed, b, h, i, j);
}

double OracleRows::sink(int64_t h, int64_t r) const {
  return read_float(*arguments_.sinks, sink_offset(*arguments_.sinks, h, r));
}

}  // namespace flashlift::problem
