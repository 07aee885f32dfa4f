#include "problem/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "problem/elements.h"
#include "score/interpret.h"

namespace flashlift::problem {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The views of a program's captured tensors, in its own order.
std::vector<TensorView> views_of(const Program& program, const Problem& problem, const AttentionArguments& arguments) {
  std::vector<TensorView> views;
  for (const Capture& capture : program.captures) {
    const auto found = std::find(problem.captures.begin(), problem.captures.end(), capture);
    views.push_back(arguments.captures[found - problem.captures.begin()]);
  }
  return views;
}

class Oracle {
 public:
  Oracle(const Problem& problem, const AttentionArguments& arguments) : problem_(problem), arguments_(arguments) {
    if (problem.score_mod) {
      score_views_ = views_of(*problem.score_mod, problem, arguments);
      score_mod_.emplace(*problem.score_mod, score_views_);
    }
    if (problem.mask_mod) {
      mask_views_ = views_of(*problem.mask_mod, problem, arguments);
      mask_mod_.emplace(*problem.mask_mod, mask_views_);
    }
  }

  OracleResult run() {
    OracleResult result;
    for (int64_t b = 0; b < arguments_.q.sizes[0]; ++b) {
      for (int64_t h = 0; h < problem_.q_heads; ++h) {
        for (int64_t i = 0; i < arguments_.q.sizes[2]; ++i) {
          const double lse = row(b, h, i);
          result.out.insert(result.out.end(), out_.begin(), out_.end());
          result.lse.push_back(lse);
        }
      }
    }
    return result;
  }

 private:
  // Computes one output row into out_ and returns its lse.
  double row(int64_t b, int64_t h, int64_t i) {
    compute_scores(b, h, i);
    double maximum = -kInfinity;
    bool any_nan = false;
    for (const double s : scores_) {
      maximum = std::max(maximum, s);
      any_nan |= std::isnan(s);
    }
    for (int64_t r = 0; r < problem_.sinks; ++r) {
      maximum = std::max(maximum, sink(h, r));
      any_nan |= std::isnan(sink(h, r));
    }
    out_.assign(problem_.value_dim, 0.0);
    if (any_nan || maximum == kInfinity) {  // inf - inf: what softmax itself gives
      std::fill(out_.begin(), out_.end(), kNan);
      return any_nan ? kNan : kInfinity;
    }
    if (maximum == -kInfinity) {
      return empty_row(b, h);
    }
    double sum = 0;
    for (int64_t r = 0; r < problem_.sinks; ++r) {
      sum += std::exp(sink(h, r) - maximum);
    }
    for (size_t j = 0; j < scores_.size(); ++j) {
      if (scores_[j] == -kInfinity) {
        continue;  // a masked key's value takes no part, even if it is NaN
      }
      const double p = std::exp(scores_[j] - maximum);
      sum += p;
      accumulate(b, h, static_cast<int64_t>(j), p);
    }
    if (problem_.normalize) {
      for (double& o : out_) {
        o /= sum;
      }
    }
    return maximum + std::log(sum);
  }

  void compute_scores(int64_t b, int64_t h, int64_t i) {
    const int64_t q_len = arguments_.q.sizes[2];
    const int64_t kv_len = arguments_.k.sizes[2];
    const int64_t g = h * problem_.kv_heads / problem_.q_heads;
    scores_.resize(kv_len);
    for (int64_t j = 0; j < kv_len; ++j) {
      const score::Coordinates at{.b = static_cast<int32_t>(b),
                                  .h = static_cast<int32_t>(h),
                                  .q = static_cast<int32_t>(i),
                                  .kv = static_cast<int32_t>(j),
                                  .q_len = static_cast<int32_t>(q_len),
                                  .kv_len = static_cast<int32_t>(kv_len)};
      if (mask_mod_ && !mask_mod_->mask_mod(at)) {
        scores_[j] = -kInfinity;
        continue;
      }
      const int64_t q_offset = row_offset(arguments_.q, b, h, i);
      const int64_t k_offset = row_offset(arguments_.k, b, g, j);
      double dot = 0;
      for (int64_t d = 0; d < problem_.head_dim; ++d) {
        dot += read_float(arguments_.q, q_offset + d * arguments_.q.strides[3]) *
               read_float(arguments_.k, k_offset + d * arguments_.k.strides[3]);
      }
      const double score = problem_.scale * dot;
      scores_[j] = score_mod_ ? score_mod_->score_mod(score, at) : score;
    }
  }

  double empty_row(int64_t b, int64_t h) {
    const int64_t kv_len = arguments_.k.sizes[2];
    if (problem_.empty_rows == EmptyRows::kNan) {
      std::fill(out_.begin(), out_.end(), kNan);
      return kNan;
    }
    if (problem_.empty_rows == EmptyRows::kUniform && kv_len > 0) {
      for (int64_t j = 0; j < kv_len; ++j) {
        accumulate(b, h, j, problem_.normalize ? 1.0 / static_cast<double>(kv_len) : 1.0);
      }
    }
    return -kInfinity;
  }

  void accumulate(int64_t b, int64_t h, int64_t j, double p) {
    const int64_t offset = row_offset(arguments_.v, b, h * problem_.kv_heads / problem_.q_heads, j);
    for (int64_t d = 0; d < problem_.value_dim; ++d) {
      out_[d] += p * read_float(arguments_.v, offset + d * arguments_.v.strides[3]);
    }
  }

  double sink(int64_t h, int64_t r) const {
    return read_float(*arguments_.sinks, h * arguments_.sinks->strides[0] + r * arguments_.sinks->strides[1]);
  }

  const Problem& problem_;
  const AttentionArguments& arguments_;
  std::vector<TensorView> score_views_;
  std::vector<TensorView> mask_views_;
  std::optional<score::Interpreter> score_mod_;
  std::optional<score::Interpreter> mask_mod_;
  std::vector<double> scores_;
  std::vector<double> out_;
};

}  // namespace

Result<OracleResult> run_oracle(const Problem& problem, const AttentionArguments& arguments) {
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));
  FLASHLIFT_RETURN_IF_ERROR(verify(problem, arguments));
  return Oracle(problem, arguments).run();
}

}  // namespace flashlift::problem
