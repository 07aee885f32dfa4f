#include "problem/eager_backward.h"

#include <array>
#include <cmath>
#include <limits>

#include "problem/dropout.h"
#include "problem/eager_rows.h"
#include "problem/elements.h"
#include "problem/score_derivative.h"
#include "problem/sinks.h"

namespace flashlift::problem {
namespace {

// A dense rank-4 tensor in f32.
struct Dense {
  std::vector<float> values;
  std::array<int64_t, 4> sizes;

  explicit Dense(const TensorView& view) : sizes{view.sizes[0], view.sizes[1], view.sizes[2], view.sizes[3]} {
    values.reserve(static_cast<size_t>(view.element_count()));
    for (int64_t b = 0; b < sizes[0]; ++b) {
      for (int64_t h = 0; h < sizes[1]; ++h) {
        for (int64_t s = 0; s < sizes[2]; ++s) {
          for (int64_t d = 0; d < sizes[3]; ++d) {
            values.push_back(static_cast<float>(read_float(view, row_offset(view, b, h, s) + d * view.strides[3])));
          }
        }
      }
    }
  }
  int64_t row(int64_t b, int64_t h, int64_t s) const { return ((b * sizes[1] + h) * sizes[2] + s) * sizes[3]; }
};

EagerGradient zeros(size_t count) {
  return {.values = std::vector<float>(count), .magnitudes = std::vector<double>(count)};
}

EagerGradient zeros_by_parts(int64_t count) {
  EagerGradient gradient = zeros(static_cast<size_t>(count));
  gradient.parts = GradientParts(count);
  return gradient;
}

// A sum, and the sum of its terms' magnitudes.
struct Sum {
  float value = 0;
  double magnitude = 0;
};

// to += factor * from, for a row of `count` elements.
void add_row(EagerGradient& to, int64_t at, const Sum& factor, const float* from, int64_t count) {
  for (int64_t d = 0; d < count; ++d) {
    to.values[at + d] += factor.value * from[d];
    to.magnitudes[at + d] += product_magnitude(factor.magnitude, std::abs(from[d]));
  }
}

class EagerBackward {
 public:
  EagerBackward(const Problem& problem, const AttentionArguments& arguments, const OracleCotangents& cotangents)
      : problem_(problem),
        arguments_(arguments),
        cotangents_(cotangents),
        rows_(problem, arguments),
        q_(arguments.q),
        k_(arguments.k),
        v_(arguments.v),
        d_out_(cotangents.out),
        dp_(rows_.kv_len()) {
    gradients_.q = zeros(q_.values.size());
    gradients_.k = zeros(k_.values.size());
    gradients_.v = zeros(v_.values.size());
    gradients_.captures.resize(problem.captures.size());
    gradients_.sinks = zeros_by_parts(arguments.sinks ? arguments.sinks->element_count() : 0);
    if (problem.score_mod) {
      derivative_.emplace(problem, arguments);
      for (const score::LoadDerivative& load : derivative_->loads()) {
        const size_t capture = derivative_->capture_of(load);
        gradients_.captures[capture] = zeros_by_parts(arguments.captures[capture].element_count());
      }
    }
  }

  EagerGradients run(const RowDone& row_done) {
    for (int64_t b = 0; b < q_.sizes[0]; ++b) {
      for (int64_t h = 0; h < problem_.q_heads; ++h) {
        for (int64_t i = 0; i < q_.sizes[2]; ++i) {
          rows_.compute(b, h, i);
          rows_.empty() ? empty_row(b, h, i) : row(b, h, i);
          ++row_;
          if (row_done) {
            row_done();
          }
        }
      }
    }
    for (EagerGradient* gradient : {&gradients_.q, &gradients_.k, &gradients_.v}) {
      for (float& x : gradient->values) {
        x = round(x);
      }
    }
    return std::move(gradients_);
  }

 private:
  float round(float x) const { return round_to(problem_.dtype, x); }
  float dropout_factor(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return static_cast<float>(problem::dropout_factor(problem_, arguments_, b, h, i, j));
  }

  void row(int64_t b, int64_t h, int64_t i) {
    const float d_lse = cotangents_.lse
                            ? static_cast<float>(read_float(*cotangents_.lse, row_offset(*cotangents_.lse, b, h, i)))
                            : 0.0f;
    const std::vector<float>& p = rows_.probabilities();
    Sum weighted;
    for (int64_t j = 0; j < rows_.kv_len(); ++j) {
      if (is_visible(j)) {
        const float factor = dropout_factor(b, h, i, j);
        const Sum dot = factor == 0 ? Sum{} : out_dot_value(b, h, i, j);
        dp_[j] = {.value = round(dot.value * factor), .magnitude = dot.magnitude * factor};
        weighted.value += p[j] * dp_[j].value;
        weighted.magnitude += product_magnitude(p[j], dp_[j].magnitude);
      }
    }
    const Sum common{.value = d_lse - weighted.value, .magnitude = std::abs(d_lse) + weighted.magnitude};
    for (int64_t r = 0; r < problem_.sinks; ++r) {
      const int64_t at = dense_sink_index(*arguments_.sinks, h, r);
      add_term(gradients_.sinks, at,
               {.value = rows_.sink_probability(r) * common.value,
                .magnitude = product_magnitude(rows_.sink_probability(r), common.magnitude)});
    }
    for (int64_t j = 0; j < rows_.kv_len(); ++j) {
      if (is_visible(j)) {
        add_to_value(b, h, i, j, p[j]);
        add_through_score(b, h, i, j,
                          {.value = p[j] * (dp_[j].value + common.value),
                           .magnitude = product_magnitude(p[j], dp_[j].magnitude + common.magnitude)});
      }
    }
  }

  void empty_row(int64_t b, int64_t h, int64_t i) {
    for (int64_t j = 0; problem_.empty_rows == EmptyRows::kUniform && j < rows_.kv_len(); ++j) {
      add_to_value(b, h, i, j, rows_.probabilities()[j]);
    }
  }

  void add_term(EagerGradient& gradient, int64_t at, const Sum& term) {
    gradient.values[at] += term.value;
    gradient.magnitudes[at] += term.magnitude;
    gradient.parts.add(row_, at, term.value);
  }

  bool is_visible(int64_t j) const { return rows_.scores()[j] != -std::numeric_limits<float>::infinity(); }

  Sum out_dot_value(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const float* d_out = d_out_.values.data() + d_out_.row(b, h, i);
    const float* v = v_.values.data() + v_.row(b, rows_.kv_head(h), j);
    Sum dot;
    for (int64_t d = 0; d < problem_.value_dim; ++d) {
      dot.value += d_out[d] * v[d];
      dot.magnitude += std::abs(d_out[d] * v[d]);
    }
    return {.value = round(dot.value), .magnitude = dot.magnitude};
  }

  void add_to_value(int64_t b, int64_t h, int64_t i, int64_t j, float p) {
    const float factor = dropout_factor(b, h, i, j);
    if (factor != 0) {
      add_row(gradients_.v, v_.row(b, rows_.kv_head(h), j), {round(round(p) * factor), p * factor},
              d_out_.values.data() + d_out_.row(b, h, i), problem_.value_dim);
    }
  }

  void add_through_score(int64_t b, int64_t h, int64_t i, int64_t j, Sum ds) {
    if (derivative_) {
      derivative_->run(rows_.products()[j], rows_.coordinates(b, h, i, j));
      for (const score::LoadDerivative& load : derivative_->loads()) {
        if (const std::optional<int64_t> at = derivative_->element_of(load)) {
          add_term(gradients_.captures[derivative_->capture_of(load)], *at,
                   {.value = derivative_->through_load(ds.value, load),
                    .magnitude = product_magnitude(ds.magnitude, std::abs(derivative_->weight(load)))});
        }
      }
      ds = {.value = derivative_->through_score(ds.value),
            .magnitude = product_magnitude(ds.magnitude, std::abs(derivative_->d_score()))};
    }
    const Sum d_product{.value = round(ds.value * problem_.scale),
                        .magnitude = product_magnitude(ds.magnitude, std::abs(problem_.scale))};
    const int64_t q_row = q_.row(b, h, i);
    const int64_t k_row = k_.row(b, rows_.kv_head(h), j);
    add_row(gradients_.q, q_row, d_product, k_.values.data() + k_row, problem_.head_dim);
    add_row(gradients_.k, k_row, d_product, q_.values.data() + q_row, problem_.head_dim);
  }

  const Problem& problem_;
  const AttentionArguments& arguments_;
  const OracleCotangents& cotangents_;
  EagerRows rows_;
  Dense q_;
  Dense k_;
  Dense v_;
  Dense d_out_;
  std::optional<ScoreDerivative<float>> derivative_;
  std::vector<Sum> dp_;
  int64_t row_ = 0;
  EagerGradients gradients_;
};

}  // namespace

Result<EagerGradients> run_eager_backward(const Problem& problem, const AttentionArguments& arguments,
                                          const OracleCotangents& cotangents, const RowDone& row_done) {
  FLASHLIFT_RETURN_IF_ERROR(verify_cotangents(problem, arguments, cotangents));
  return EagerBackward(problem, arguments, cotangents).run(row_done);
}

}  // namespace flashlift::problem
