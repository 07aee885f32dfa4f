#include "problem/bound_problem.h"

#include <algorithm>

#include "problem/elements.h"
#include "problem/sinks.h"

namespace flashlift::problem {

std::vector<TensorView> views_of(const Program& program, const Problem& problem, std::span<const TensorView> captures) {
  std::vector<TensorView> views;
  for (const Capture& capture : program.captures) {
    const auto found = std::find(problem.captures.begin(), problem.captures.end(), capture);
    views.push_back(captures[found - problem.captures.begin()]);
  }
  return views;
}

template <typename Real>
BoundProblem<Real>::BoundProblem(const Problem& problem, const AttentionArguments& arguments)
    : problem_(problem), arguments_(arguments), kv_len_(kv_length(problem, arguments)) {
  if (problem.score_mod) {
    score_views_ = views_of(*problem.score_mod, problem, arguments.captures);
    score_mod_.emplace(*problem.score_mod, score_views_);
  }
  if (problem.mask_mod) {
    mask_views_ = views_of(*problem.mask_mod, problem, arguments.captures);
    mask_mod_.emplace(*problem.mask_mod, mask_views_);
  }
}

template <typename Real>
score::Coordinates BoundProblem<Real>::coordinates(int64_t b, int64_t h, int64_t i, int64_t j) const {
  return {.b = static_cast<int32_t>(b),
          .h = static_cast<int32_t>(h),
          .q = static_cast<int32_t>(i),
          .kv = static_cast<int32_t>(j),
          .q_len = static_cast<int32_t>(arguments_.q.sizes[2]),
          .kv_len = static_cast<int32_t>(kv_len_)};
}

template <typename Real>
Real BoundProblem<Real>::sink(int64_t h, int64_t r) const {
  return static_cast<Real>(read_float(*arguments_.sinks, sink_offset(*arguments_.sinks, h, r)));
}

template <typename Real>
Real BoundProblem<Real>::score_mod(Real score, const score::Coordinates& at) {
  return score_mod_ ? score_mod_->score_mod(score, at) : score;
}

template <typename Real>
bool BoundProblem<Real>::mask_mod(const score::Coordinates& at) {
  return !mask_mod_ || mask_mod_->mask_mod(at);
}

template <typename Real>
int64_t BoundProblem<Real>::offset(const TensorView& view, int64_t b, int64_t g, int64_t j) const {
  if (problem_.page_size == 0) {
    return row_offset(view, b, g, j);
  }
  const TensorView& table = *arguments_.page_table;
  const int64_t entry = b * table.strides[0] + j / problem_.page_size * table.strides[1];
  const int64_t page = std::clamp<int64_t>(static_cast<const int32_t*>(table.data)[entry], 0, view.sizes[0] - 1);
  return row_offset(view, page, g, j % problem_.page_size);
}

template class BoundProblem<float>;
template class BoundProblem<double>;

}  // namespace flashlift::problem
