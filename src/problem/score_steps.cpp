#include "problem/score_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "problem/elements.h"
#include "score/operation.h"

namespace flashlift::problem {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// The error of a score's terms and of its program's operations: several f32 roundings, but far less than one of 16
// bits.
const double kScoreRounding = std::ldexp(1.0, -18);

bool is_step(const Program& program, const Node& node) {
  const bool of_real = !node.operands.empty() && program.nodes[node.operands.back()].type == Type::kF32;
  if (node.type != Type::kF32) {  // comparisons, conversions to integers, and bits
    return of_real;
  }
  // A rounding follows its operand on a large scale, but has steps.
  return score::is_any(node.op, {Op::k_floor, Op::k_ceil, Op::k_round_even, Op::k_round_f16, Op::k_round_bf16});
}

// The log-sum-exp of one end (the lower or upper one) of the scores' ranges.
template <typename End>
double log_sum(const std::vector<Range>& scores, std::span<const double> sinks, End end) {
  double maximum = -kInfinity;
  for (const Range& s : scores) {
    maximum = std::max(maximum, end(s));
  }
  for (const double s : sinks) {
    maximum = std::max(maximum, s);
  }
  if (!std::isfinite(maximum)) {
    return maximum;
  }
  double sum = 0;
  for (const Range& s : scores) {
    sum += std::exp(end(s) - maximum);
  }
  for (const double s : sinks) {
    sum += std::exp(s - maximum);
  }
  return maximum + std::log(sum);
}

}  // namespace

bool has_score_steps(const Program& score_mod) {
  std::vector<bool> of_score;
  for (const Node& node : score_mod.nodes) {
    const bool depends = node.op == Op::k_score || std::any_of(node.operands.begin(), node.operands.end(),
                                                               [&](ValueId operand) { return of_score[operand]; });
    if (depends && is_step(score_mod, node)) {
      return true;
    }
    of_score.push_back(depends);
  }
  return false;
}

void ScoreSteps::compute(int64_t b, int64_t h, int64_t i) {
  scores_.clear();
  row_max_ = {.low = -kInfinity, .high = -kInfinity};
  for (int64_t j = 0; j < kv_len(); ++j) {
    scores_.push_back(score(b, h, i, j));
    row_max_.low = std::max(row_max_.low, scores_.back().low);
    row_max_.high = std::max(row_max_.high, scores_.back().high);
  }
  std::vector<double> sinks;
  for (int64_t r = 0; r < problem_.sinks; ++r) {
    sinks.push_back(sink(h, r));
  }
  lse_ = {.low = log_sum(scores_, sinks, [](const Range& s) { return s.low; }),
          .high = log_sum(scores_, sinks, [](const Range& s) { return s.high; })};
}

Range ScoreSteps::score(int64_t b, int64_t h, int64_t i, int64_t j) {
  const score::Coordinates at = coordinates(b, h, i, j);
  if (!mask_mod(at)) {
    return {.low = -kInfinity, .high = -kInfinity};
  }
  const int64_t q_offset = row_offset(arguments_.q, b, h, i);
  const int64_t k_offset = key_offset(b, kv_head(h), j);
  double dot = 0;
  double terms = 0;
  for (int64_t d = 0; d < problem_.head_dim; ++d) {
    const double term = problem_.scale * read_float(arguments_.q, q_offset + d * arguments_.q.strides[3]) *
                        read_float(arguments_.k, k_offset + d * arguments_.k.strides[3]);
    dot += term;
    terms += std::abs(term);
  }
  const double exact = score_mod(dot, at);
  const double size = terms + (std::isfinite(exact) ? std::abs(exact) : 0.0);
  Range range{.low = exact, .high = exact};
  for (const double moved : {score_mod(dot - kScoreRounding * size, at), score_mod(dot + kScoreRounding * size, at)}) {
    range.low = std::min(range.low, moved);
    range.high = std::max(range.high, moved);
  }
  return range;
}

}  // namespace flashlift::problem
