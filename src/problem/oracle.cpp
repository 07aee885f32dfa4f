#include "problem/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "problem/elements.h"
#include "problem/oracle_rows.h"

namespace flashlift::problem {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class Oracle {
 public:
  Oracle(const Problem& problem, const AttentionArguments& arguments)
      : problem_(problem), arguments_(arguments), rows_(problem, arguments) {}

  OracleResult run(const RowDone& row_done) {
    OracleResult result;
    for (int64_t b = 0; b < arguments_.q.sizes[0]; ++b) {
      for (int64_t h = 0; h < problem_.q_heads; ++h) {
        for (int64_t i = 0; i < arguments_.q.sizes[2]; ++i) {
          const double lse = row(b, h, i);
          result.row_max.push_back(row_max_);
          result.out.insert(result.out.end(), out_.begin(), out_.end());
          result.lse.push_back(lse);
          if (row_done) {
            row_done();
          }
        }
      }
    }
    return result;
  }

 private:
  // Computes one output row into out_ and returns its lse.
  double row(int64_t b, int64_t h, int64_t i) {
    b_ = b;
    h_ = h;
    i_ = i;
    rows_.compute(b, h, i);
    const std::vector<double>& scores = rows_.scores();
    double maximum = -kInfinity;
    bool any_nan = false;
    for (const double s : scores) {
      maximum = std::max(maximum, s);
      any_nan |= std::isnan(s);
    }
    row_max_ = any_nan ? kNan : maximum;
    for (int64_t r = 0; r < problem_.sinks; ++r) {
      maximum = std::max(maximum, rows_.sink(h, r));
      any_nan |= std::isnan(rows_.sink(h, r));
    }
    out_.assign(problem_.value_dim, 0.0);
    if (any_nan || maximum == kInfinity) {  // inf - inf: a softmax is NaN, too
      std::fill(out_.begin(), out_.end(), kNan);
      return any_nan ? kNan : kInfinity;
    }
    if (maximum == -kInfinity) {
      return empty_row();
    }
    double sum = 0;
    for (int64_t r = 0; r < problem_.sinks; ++r) {
      sum += std::exp(rows_.sink(h, r) - maximum);
    }
    for (size_t j = 0; j < scores.size(); ++j) {
      if (scores[j] == -kInfinity) {
        continue;  // a masked key's value has no effect, even if it is NaN
      }
      const double p = std::exp(scores[j] - maximum);
      sum += p;
      accumulate(static_cast<int64_t>(j), p);
    }
    if (problem_.normalize) {
      for (double& o : out_) {
        o /= sum;
      }
    }
    return maximum + std::log(sum);
  }

  double empty_row() {
    const int64_t kv_len = rows_.kv_len();
    if (problem_.empty_rows == EmptyRows::kNan) {
      std::fill(out_.begin(), out_.end(), kNan);
      return kNan;
    }
    if (problem_.empty_rows == EmptyRows::kUniform && kv_len > 0) {
      for (int64_t j = 0; j < kv_len; ++j) {
        accumulate(j, problem_.normalize ? 1.0 / static_cast<double>(kv_len) : 1.0);
      }
    }
    return -kInfinity;
  }

  void accumulate(int64_t j, double p) {
    const double factor = rows_.dropout_factor(b_, h_, i_, j);
    if (factor == 0) {
      return;  // a dropped key's value has no effect either
    }
    p *= factor;
    const int64_t offset = rows_.value_offset(b_, rows_.kv_head(h_), j);
    for (int64_t d = 0; d < problem_.value_dim; ++d) {
      out_[d] += p * read_float(arguments_.v, offset + d * arguments_.v.strides[3]);
    }
  }

  const Problem& problem_;
  const AttentionArguments& arguments_;
  OracleRows rows_;
  int64_t b_ = 0;
  int64_t h_ = 0;
  int64_t i_ = 0;
  double row_max_ = 0;
  std::vector<double> out_;
};

}  // namespace

Result<OracleResult> run_oracle(const Problem& problem, const AttentionArguments& arguments, const RowDone& row_done) {
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));
  FLASHLIFT_RETURN_IF_ERROR(verify(problem, arguments));
  return Oracle(problem, arguments).run(row_done);
}

}  // namespace flashlift::problem
