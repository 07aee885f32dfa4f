#include "problem/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "problem/eager.h"
#include "problem/eager_backward.h"
#include "problem/elements.h"
#include "problem/oracle.h"
#include "problem/oracle_backward.h"

namespace flashlift::problem {
namespace {

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return std::ldexp(1.0, -8);
    case DType::kF16:
      return std::ldexp(1.0, -11);
    default:
      return std::ldexp(1.0, -24);
  }
}

struct ErrorSums {
  double error = 0;
  double maximum = 0;
  int64_t count = 0;

  void add(double got, double want) {
    error += std::abs(got - want);
    maximum = std::max(maximum, std::abs(got - want));
    ++count;
  }
  double mean() const { return count > 0 ? error / static_cast<double>(count) : 0; }
};

// One tensor of a result, and what it is held against.
struct Subject {
  std::string name;
  const TensorView& got;
  const std::vector<double>& want;        // dense; empty: zeros
  const std::vector<float>& eager;        // likewise
  const std::vector<double>& magnitudes;  // of the elements' terms, for f32's share of the bound; empty: |want|
  double samples = 1;                     // how many independent errors the mean is over
  bool same_non_finite = true;            // NaN and each infinity stand where the oracle has the same
};

std::string place(const Subject& subject, int64_t index) {
  std::string text;
  for (int d = subject.got.rank - 1; d >= 0; --d) {
    text = fmt::format("{}{}{}", index % subject.got.sizes[d], text.empty() ? "" : ",", text);
    index /= subject.got.sizes[d];
  }
  return fmt::format("{}[{}]", subject.name, text);
}

CheckReport judge(const Subject& subject) {
  CheckReport report{.tensor = subject.name, .ok = true};
  ErrorSums ours;
  ErrorSums theirs;
  double magnitude = 0;
  double terms = 0;
  const int64_t count = subject.got.element_count();
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const double want = subject.want.empty() ? 0.0 : subject.want[at];
    const double got = read_float(subject.got, element_offset(subject.got, i));
    const double eager = subject.eager.empty() ? 0.0 : subject.eager[at];
    if (!std::isfinite(want) || !std::isfinite(got)) {
      const bool same = subject.same_non_finite ? (std::isnan(got) && std::isnan(want)) || got == want
                                                : std::isfinite(got) == std::isfinite(want) || !std::isfinite(eager);
      if (!same && report.ok) {
        report.ok = false;
        report.reason = fmt::format("expected {} at {}, got {}", want, place(subject, i), got);
      }
      continue;
    }
    ours.add(got, want);
    magnitude += std::abs(want);
    const double of_terms = subject.magnitudes.empty() ? std::abs(want) : subject.magnitudes[at];
    terms += std::isfinite(of_terms) ? of_terms : 0.0;
    if (std::isfinite(eager)) {  // what overflows in a 16-bit dtype is no measure
      theirs.add(eager, want);
    }
  }
  report.mean_error = ours.mean();
  report.max_error = ours.maximum;
  report.eager_error = theirs.mean();
  if (ours.count == 0) {
    return report;
  }
  // Chance: each element's rounding error is uniform within an ulp, so a mean over n of them wanders by 1/sqrt(n).
  const auto elements = static_cast<double>(ours.count);
  const double rounding =
      epsilon(subject.got.dtype) / std::sqrt(elements) * magnitude + 4 * epsilon(DType::kF32) * terms;
  // With n independent samples, two means of the same distribution differ by more than 3 / sqrt(n) of their size less
  // than once in a thousand.
  const double ratio = 1.1 + 3.0 / std::sqrt(std::max(1.0, subject.samples));
  report.bound = ratio * report.eager_error + rounding / elements;
  if (report.ok && !(report.mean_error <= report.bound)) {
    report.ok = false;
    report.reason =
        fmt::format("mean error of {} {:.3g} is above the bound {:.3g}", subject.name, report.mean_error, report.bound);
  }
  return report;
}

// How many rows have errors of their own. Queries along a stride of 0 are one query; a head or a batch is another
// sample where its keys are.
double independent_rows(const AttentionArguments& arguments) {
  const TensorView& q = arguments.q;
  const TensorView& k = arguments.k;
  const int64_t batch = q.strides[0] == 0 && k.strides[0] == 0 ? 1 : q.sizes[0];
  const int64_t heads = q.strides[1] != 0 ? q.sizes[1] : k.strides[1] != 0 ? k.sizes[1] : 1;
  const int64_t length = q.strides[2] == 0 ? 1 : q.sizes[2];
  return static_cast<double>(batch * heads * length);
}

// lse and row maxima.
void check_rows(const Subject& subject, CheckReport& report) {
  for (size_t i = 0; i < subject.want.size() && report.ok; ++i) {
    const double got = read_float(subject.got, element_offset(subject.got, static_cast<int64_t>(i)));
    const double expected = subject.want[i];
    const bool same = (std::isnan(got) && std::isnan(expected)) || got == expected;
    // A score, or one plus a logarithm of its order: relative to it, with the error of a dot product allowed.
    if (same || std::abs(got - expected) <= 1e-4 * std::max(1.0, std::abs(expected))) {
      continue;
    }
    // A program that rounds scores (logits=bf16) makes a step of the smallest error now and then, in eager maths too.
    if (const CheckReport rows = judge(subject); !rows.ok) {
      report.ok = false;
      report.reason = fmt::format("{} of row {}: expected {}, got {}; {}", subject.name, i, expected, got, rows.reason);
    }
    return;
  }
}

// The gradients of a call beside what they should be.
class GradientCheck {
 public:
  GradientCheck(const AttentionArguments& forward, OracleGradients want, EagerGradients eager)
      : query_rows_(independent_rows(forward)), want_(std::move(want)), eager_(std::move(eager)) {}

  CheckReport run(const Problem& problem, const BackwardArguments& arguments) {
    add("d_q", arguments.d_q, problem.head_dim, want_.q, eager_.q);
    add("d_k", arguments.d_k, problem.head_dim, want_.k, eager_.k);
    add("d_v", arguments.d_v, problem.value_dim, want_.v, eager_.v);
    for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
      add(fmt::format("the gradient of `{}`", problem.captures[i].name), arguments.d_captures[i], 1, want_.captures[i],
          eager_.captures[i]);
    }
    add("d_sinks", arguments.d_sinks, 1, want_.sinks, eager_.sinks);
    return worst_;
  }

 private:
  // The elements of a row of `width` share their errors.
  void add(const std::string& name, const std::optional<TensorView>& got, int64_t width,
           const std::vector<double>& want, const EagerGradient& eager) {
    if (!got) {
      return;
    }
    const int64_t rows = got->element_count() / width;
    const CheckReport report = judge({.name = name,
                                      .got = *got,
                                      .want = want,
                                      .eager = eager.values,
                                      .magnitudes = eager.magnitudes,
                                      // All that a query's row passes on has the error of its softmax in common.
                                      .samples = std::min(query_rows_, static_cast<double>(rows)),
                                      .same_non_finite = false});
    const auto excess = [](const CheckReport& r) { return r.mean_error / std::max(r.bound, 1e-300); };
    if (worst_.tensor.empty() || (worst_.ok && (!report.ok || excess(report) > excess(worst_)))) {
      worst_ = report;
    }
  }

  double query_rows_;
  OracleGradients want_;
  EagerGradients eager_;
  CheckReport worst_{.ok = true};
};

}  // namespace

Result<CheckReport> check_output(const Problem& problem, const AttentionArguments& arguments) {
  FLASHLIFT_ASSIGN_OR_RETURN(const OracleResult want, run_oracle(problem, arguments));
  FLASHLIFT_ASSIGN_OR_RETURN(const EagerResult eager, run_eager(problem, arguments));
  // A row's outputs share the errors of its scores.
  const double samples = independent_rows(arguments);
  CheckReport report = judge({.name = "out",
                              .got = arguments.out,
                              .want = want.out,
                              .eager = eager.out,
                              .magnitudes = {},
                              .samples = samples});
  const auto check = [&](const char* name, const std::optional<TensorView>& got, const std::vector<double>& expected,
                         const std::vector<float>& eager_rows) {
    if (report.ok && got) {
      check_rows(
          {.name = name, .got = *got, .want = expected, .eager = eager_rows, .magnitudes = {}, .samples = samples},
          report);
    }
  };
  check("lse", arguments.lse, want.lse, eager.lse);
  check("row_max", arguments.row_max, want.row_max, eager.row_max);
  return report;
}

Result<CheckReport> check_gradients(const Problem& problem, const BackwardArguments& arguments) {
  const OracleCotangents cotangents{.out = arguments.d_out, .lse = arguments.d_lse};
  FLASHLIFT_ASSIGN_OR_RETURN(OracleGradients want, run_oracle_backward(problem, arguments.forward, cotangents));
  FLASHLIFT_ASSIGN_OR_RETURN(EagerGradients eager, run_eager_backward(problem, arguments.forward, cotangents));
  return GradientCheck(arguments.forward, std::move(want), std::move(eager)).run(problem, arguments);
}

}  // namespace flashlift::problem
