#include "problem/eager.h"

#include <limits>

#include "problem/dropout.h"
#include "problem/eager_rows.h"
#include "problem/elements.h"

namespace flashlift::problem {
namespace {

class Eager {
 public:
  Eager(const Problem& problem, const AttentionArguments& arguments)
      : p_(problem), a_(arguments), rows_(problem, arguments) {}

  EagerResult run(const RowDone& row_done) {
    for (int64_t b = 0; b < a_.q.sizes[0]; ++b) {
      for (int64_t h = 0; h < p_.q_heads; ++h) {
        for (int64_t i = 0; i < a_.q.sizes[2]; ++i) {
          rows_.compute(b, h, i);
          result_.lse.push_back(rows_.lse());
          result_.row_max.push_back(rows_.row_max());
          round_and_drop_out(b, h, i);
          multiply_values(b, h);
          if (row_done) {
            row_done();
          }
        }
      }
    }
    return std::move(result_);
  }

 private:
  void round_and_drop_out(int64_t b, int64_t h, int64_t i) {
    probabilities_ = rows_.probabilities();
    for (size_t j = 0; j < probabilities_.size(); ++j) {
      float& p = probabilities_[j];
      p = round_to(p_.dtype, p);
      if (p_.drops_keys()) {
        const double factor = dropout_factor(p_, a_, b, h, i, static_cast<int64_t>(j));
        p = factor == 0 ? 0.0f : round_to(p_.dtype, p * static_cast<float>(factor));
      }
    }
  }

  void multiply_values(int64_t b, int64_t h) {
    // Written explicitly, because there may be no key with a NaN to propagate.
    const bool nan = rows_.empty() && p_.empty_rows == EmptyRows::kNan;
    for (int64_t d = 0; d < p_.value_dim; ++d) {
      float sum = nan ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
      for (size_t j = 0; j < probabilities_.size(); ++j) {
        if (probabilities_[j] != 0) {
          const int64_t offset = rows_.value_offset(b, rows_.kv_head(h), static_cast<int64_t>(j));
          sum += probabilities_[j] * static_cast<float>(read_float(a_.v, offset + d * a_.v.strides[3]));
        }
      }
      result_.out.push_back(round_to(p_.out_dtype, sum));
    }
  }

  const Problem& p_;
  const AttentionArguments& a_;
  EagerRows rows_;
  std::vector<float> probabilities_;
  EagerResult result_;
};

}  // namespace

Result<EagerResult> run_eager(const Problem& problem, const AttentionArguments& arguments, const RowDone& row_done) {
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));
  FLASHLIFT_RETURN_IF_ERROR(verify(problem, arguments));
  return Eager(problem, arguments).run(row_done);
}

}  // namespace flashlift::problem
