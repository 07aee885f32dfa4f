#include "problem/eager_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "problem/elements.h"

namespace flashlift::problem {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

float round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::kBF16:
      return bf16_to_float(float_to_bf16(value));
    case DType::kF16:
      return f16_to_float(float_to_f16(value));
    default:
      return value;
  }
}

EagerRows::EagerRows(const Problem& problem, const AttentionArguments& arguments)
    : BoundProblem(problem, arguments),
      products_(kv_len()),
      scores_(kv_len()),
      probabilities_(kv_len()),
      sink_probabilities_(problem.sinks) {}

void EagerRows::compute(int64_t b, int64_t h, int64_t i) {
  fill_scores(b, h, i);
  softmax(h);
}

void EagerRows::fill_scores(int64_t b, int64_t h, int64_t i) {
  const int64_t q_offset = row_offset(arguments_.q, b, h, i);
  for (int64_t j = 0; j < kv_len(); ++j) {
    const score::Coordinates at = coordinates(b, h, i, j);
    const int64_t k_offset = key_offset(b, kv_head(h), j);
    float dot = 0;
    for (int64_t d = 0; d < problem_.head_dim; ++d) {
      dot += static_cast<float>(read_float(arguments_.q, q_offset + d * arguments_.q.strides[3])) *
             static_cast<float>(read_float(arguments_.k, k_offset + d * arguments_.k.strides[3]));
    }
    products_[j] = round_to(problem_.dtype, dot) * problem_.scale;
    const float s = score_mod(products_[j], at);
    scores_[j] = mask_mod(at) ? s : -kInfinity;
  }
}

void EagerRows::softmax(int64_t h) {
  float maximum = -kInfinity;
  for (const float s : scores_) {
    maximum = std::max(maximum, s);
  }
  row_max_ = maximum;
  for (int64_t r = 0; r < problem_.sinks; ++r) {
    maximum = std::max(maximum, sink(h, r));
  }
  empty_ = maximum == -kInfinity;
  if (empty_) {
    const bool uniform = problem_.empty_rows == EmptyRows::kUniform;
    const bool nan = problem_.empty_rows == EmptyRows::kNan;
    const float mean = problem_.normalize ? 1.0f / static_cast<float>(kv_len()) : 1.0f;
    std::fill(probabilities_.begin(), probabilities_.end(), nan ? std::nanf("") : uniform ? mean : 0.0f);
    lse_ = nan ? std::nanf("") : -kInfinity;
    return;
  }
  float sum = 0;
  for (int64_t r = 0; r < problem_.sinks; ++r) {
    sink_probabilities_[r] = std::exp(sink(h, r) - maximum);
    sum += sink_probabilities_[r];
  }
  for (int64_t j = 0; j < kv_len(); ++j) {
    probabilities_[j] = std::exp(scores_[j] - maximum);
    sum += probabilities_[j];
  }
  lse_ = maximum + std::log(sum);
  if (!problem_.normalize) {
    return;
  }
  for (float& p : sink_probabilities_) {
    p /= sum;
  }
  for (float& p : probabilities_) {
    p /= sum;
  }
}

}  // namespace flashlift::problem
