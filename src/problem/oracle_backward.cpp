#include "problem/oracle_backward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "flashlift/backward.h"
#include "problem/elements.h"
#include "problem/oracle_rows.h"
#include "problem/score_derivative.h"
#include "problem/sinks.h"
#include "support/error.h"

namespace flashlift::problem {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Status verify_cotangent(const char* name, const TensorView& view, std::span<const int64_t> shape) {
  const bool is_float = view.dtype == DType::kF32 || view.dtype == DType::kBF16 || view.dtype == DType::kF16;
  if (!is_float || !std::equal(shape.begin(), shape.end(), view.shape().begin(), view.shape().end())) {
    return invalid_argument("the cotangent of {} must be a float tensor of its shape, got {}", name, describe(view));
  }
  return {};
}

class OracleBackward {
 public:
  OracleBackward(const Problem& problem, const AttentionArguments& arguments, const OracleCotangents& cotangents)
      : problem_(problem),
        arguments_(arguments),
        cotangents_(cotangents),
        rows_(problem, arguments),
        kv_len_(arguments.k.sizes[2]) {
    gradients_.q.assign(arguments.q.element_count(), 0.0);
    gradients_.k.assign(arguments.k.element_count(), 0.0);
    gradients_.v.assign(arguments.v.element_count(), 0.0);
    gradients_.captures.resize(problem.captures.size());
    gradients_.capture_parts.resize(problem.captures.size());
    gradients_.sinks.assign(arguments.sinks ? arguments.sinks->element_count() : 0, 0.0);
    gradients_.sink_parts = GradientParts(static_cast<int64_t>(gradients_.sinks.size()));
    if (problem.score_mod) {
      derivative_.emplace(problem, arguments);
      for (const score::LoadDerivative& load : derivative_->loads()) {
        const size_t capture = derivative_->capture_of(load);
        const int64_t elements = arguments.captures[capture].element_count();
        gradients_.captures[capture].assign(elements, 0.0);
        gradients_.capture_parts[capture] = GradientParts(elements);
      }
    }
  }

  OracleGradients run(const RowDone& row_done) {
    for (int64_t b = 0; b < arguments_.q.sizes[0]; ++b) {
      for (int64_t h = 0; h < problem_.q_heads; ++h) {
        for (int64_t i = 0; i < arguments_.q.sizes[2]; ++i) {
          row(b, h, i);
          ++row_;
          if (row_done) {
            row_done();
          }
        }
      }
    }
    return std::move(gradients_);
  }

 private:
  void row(int64_t b, int64_t h, int64_t i) {
    rows_.compute(b, h, i);
    const std::vector<double>& scores = rows_.scores();
    double maximum = -kInfinity;
    for (const double s : scores) {
      maximum = std::isnan(s) ? s : std::max(maximum, s);
    }
    for (int64_t r = 0; r < problem_.sinks; ++r) {
      maximum = std::max(maximum, rows_.sink(h, r));
    }
    if (maximum == -kInfinity) {
      empty_row(b, h, i);
      return;
    }
    double sum = 0;
    for (const double s : scores) {
      sum += std::exp(s - maximum);
    }
    for (int64_t r = 0; r < problem_.sinks; ++r) {
      sum += std::exp(rows_.sink(h, r) - maximum);
    }
    // Not exp(s - lse): if a large finite constant masks a whole row, lse is rounded to the maximum and loses log(sum).
    const auto probability = [&](double s) { return std::exp(s - maximum) / sum; };

    // d s_ij = p_ij (dp_ij - sum_k p_ik dp_ik + d lse_i), with dp_ij = <d out_i, v_j>, and dp = 0 for sinks.
    double weighted = 0;
    dp_.assign(kv_len_, 0.0);
    for (int64_t j = 0; j < kv_len_; ++j) {
      if (scores[j] != -kInfinity) {
        const double factor = rows_.dropout_factor(b, h, i, j);
        dp_[j] = factor == 0 ? 0.0 : factor * out_dot_value(b, h, i, j);
        weighted += probability(scores[j]) * dp_[j];
      }
    }
    const double common = d_lse(b, h, i) - weighted;
    for (int64_t r = 0; r < problem_.sinks; ++r) {
      const int64_t at = dense_sink_index(*arguments_.sinks, h, r);
      const double term = probability(rows_.sink(h, r)) * common;
      gradients_.sinks[at] += term;
      gradients_.sink_parts.add(row_, at, term);
    }
    for (int64_t j = 0; j < kv_len_; ++j) {
      if (scores[j] != -kInfinity) {
        const double p = probability(scores[j]);
        add_to_value(b, h, i, j, p);
        add_through_score(b, h, i, j, p * (dp_[j] + common));
      }
    }
  }

  void empty_row(int64_t b, int64_t h, int64_t i) {
    if (problem_.empty_rows == EmptyRows::kUniform) {
      for (int64_t j = 0; j < kv_len_; ++j) {
        add_to_value(b, h, i, j, 1.0 / static_cast<double>(kv_len_));
      }
    }
  }

  void add_through_score(int64_t b, int64_t h, int64_t i, int64_t j, double ds) {
    if (derivative_) {
      derivative_->run(rows_.products()[j], rows_.coordinates(b, h, i, j));
      for (const score::LoadDerivative& load : derivative_->loads()) {
        if (const std::optional<int64_t> at = derivative_->element_of(load)) {
          const size_t capture = derivative_->capture_of(load);
          const double term = derivative_->through_load(ds, load);
          gradients_.captures[capture][*at] += term;
          gradients_.capture_parts[capture].add(row_, *at, term);
        }
      }
      ds = derivative_->through_score(ds);
    }
    const int64_t g = rows_.kv_head(h);
    const int64_t q_offset = row_offset(arguments_.q, b, h, i);
    const int64_t k_offset = row_offset(arguments_.k, b, g, j);
    double* dq = gradients_.q.data() + dense_row(arguments_.q, b, h, i);
    double* dk = gradients_.k.data() + dense_row(arguments_.k, b, g, j);
    for (int64_t d = 0; d < problem_.head_dim; ++d) {
      dq[d] += problem_.scale * ds * read_float(arguments_.k, k_offset + d * arguments_.k.strides[3]);
      dk[d] += problem_.scale * ds * read_float(arguments_.q, q_offset + d * arguments_.q.strides[3]);
    }
  }

  void add_to_value(int64_t b, int64_t h, int64_t i, int64_t j, double p) {
    const double factor = rows_.dropout_factor(b, h, i, j);
    if (factor == 0) {
      return;  // has no effect, even if the row is NaN
    }
    const int64_t offset = row_offset(cotangents_.out, b, h, i);
    double* dv = gradients_.v.data() + dense_row(arguments_.v, b, rows_.kv_head(h), j);
    for (int64_t d = 0; d < problem_.value_dim; ++d) {
      dv[d] += p * factor * read_float(cotangents_.out, offset + d * cotangents_.out.strides[3]);
    }
  }

  double out_dot_value(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t out_offset = row_offset(cotangents_.out, b, h, i);
    const int64_t v_offset = row_offset(arguments_.v, b, rows_.kv_head(h), j);
    double dot = 0;
    for (int64_t d = 0; d < problem_.value_dim; ++d) {
      dot += read_float(cotangents_.out, out_offset + d * cotangents_.out.strides[3]) *
             read_float(arguments_.v, v_offset + d * arguments_.v.strides[3]);
    }
    return dot;
  }

  double d_lse(int64_t b, int64_t h, int64_t i) const {
    return cotangents_.lse ? read_float(*cotangents_.lse, row_offset(*cotangents_.lse, b, h, i)) : 0.0;
  }

  static int64_t dense_row(const TensorView& view, int64_t b, int64_t h, int64_t s) {
    return ((b * view.sizes[1] + h) * view.sizes[2] + s) * view.sizes[3];
  }

  const Problem& problem_;
  const AttentionArguments& arguments_;
  const OracleCotangents& cotangents_;
  OracleRows rows_;
  int64_t kv_len_;
  int64_t row_ = 0;
  std::optional<ScoreDerivative<double>> derivative_;
  std::vector<double> dp_;
  OracleGradients gradients_;
};

}  // namespace

Status verify_cotangents(const Problem& problem, const AttentionArguments& arguments,
                         const OracleCotangents& cotangents) {
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));
  FLASHLIFT_RETURN_IF_ERROR(verify_backward(problem));
  FLASHLIFT_RETURN_IF_ERROR(verify(problem, arguments));
  FLASHLIFT_RETURN_IF_ERROR(verify_cotangent("out", cotangents.out, arguments.out.shape()));
  return cotangents.lse ? verify_cotangent("lse", *cotangents.lse, arguments.out.shape().first(3)) : Status();
}

Result<OracleGradients> run_oracle_backward(const Problem& problem, const AttentionArguments& arguments,
                                            const OracleCotangents& cotangents, const RowDone& row_done) {
  FLASHLIFT_RETURN_IF_ERROR(verify_cotangents(problem, arguments, cotangents));
  return OracleBackward(problem, arguments, cotangents).run(row_done);
}

}  // namespace flashlift::problem
