#include "problem/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "problem/eager.h"
#include "problem/elements.h"
#include "problem/oracle.h"

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
  double magnitude = 0;
  int64_t count = 0;
  std::string mismatch;  // a NaN or an infinity where the oracle has another value

  void add(double got, double want, const std::function<std::string()>& place) {
    if (!std::isfinite(want) || !std::isfinite(got)) {
      const bool same = (std::isnan(got) && std::isnan(want)) || got == want;
      if (!same && mismatch.empty()) {
        mismatch = fmt::format("expected {} at {}, got {}", want, place(), got);
      }
      return;
    }
    error += std::abs(got - want);
    maximum = std::max(maximum, std::abs(got - want));
    magnitude += std::abs(want);
    ++count;
  }
  double mean_error() const { return count > 0 ? error / static_cast<double>(count) : 0; }
  double mean_magnitude() const { return count > 0 ? magnitude / static_cast<double>(count) : 0; }
};

// lse and row maxima.
void check_rows(const char* name, const TensorView& view, const std::vector<double>& want, CheckReport& report) {
  const int64_t heads = view.sizes[1];
  const int64_t rows = view.sizes[2];
  for (size_t i = 0; i < want.size() && report.ok; ++i) {
    const int64_t index = static_cast<int64_t>(i);
    const double got = read_float(view, row_offset(view, index / (heads * rows), index / rows % heads, index % rows));
    const double expected = want[i];
    const bool same = (std::isnan(got) && std::isnan(expected)) || got == expected;
    // A score, or one plus a logarithm of its order: relative to it, with the error of a dot product allowed.
    if (!same && !(std::abs(got - expected) <= 1e-4 * std::max(1.0, std::abs(expected)))) {
      report.ok = false;
      report.reason = fmt::format("{} of row {}: expected {}, got {}", name, i, expected, got);
    }
  }
}

}  // namespace

Result<CheckReport> check_output(const Problem& problem, const AttentionArguments& arguments) {
  FLASHLIFT_ASSIGN_OR_RETURN(const OracleResult want, run_oracle(problem, arguments));
  FLASHLIFT_ASSIGN_OR_RETURN(const std::vector<float> eager, run_eager(problem, arguments));
  ErrorSums ours;
  ErrorSums theirs;
  const TensorView& out = arguments.out;
  const int64_t heads = out.sizes[1];
  const int64_t rows = out.sizes[2];
  const int64_t dims = out.sizes[3];
  for (size_t i = 0; i < want.out.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / dims;
    const int64_t d = static_cast<int64_t>(i) % dims;
    const int64_t b = row / (heads * rows);
    const int64_t h = row / rows % heads;
    const int64_t s = row % rows;
    const double got = read_float(out, row_offset(out, b, h, s) + d * out.strides[3]);
    ours.add(got, want.out[i], [&] { return fmt::format("out[{},{},{},{}]", b, h, s, d); });
    theirs.add(eager[i], want.out[i], [] { return std::string(); });
  }
  CheckReport report;
  report.mean_error = ours.mean_error();
  report.max_error = ours.maximum;
  report.eager_error = theirs.mean_error();
  // Chance: each element's rounding error is uniform within an ulp, so a mean over n of them wanders by 1/sqrt(n).
  const double chance = epsilon(problem.out_dtype) / std::sqrt(std::max<double>(1.0, static_cast<double>(ours.count)));
  // A row's outputs share the errors of its scores, so that only rows are independent samples of either mean: with n
  // rows, two means of the same distribution differ by more than 3 / sqrt(n) of their size less than once in a
  // thousand.
  const double rows_counted = std::max(1.0, static_cast<double>(ours.count) / static_cast<double>(dims));
  const double ratio = 1.1 + 3.0 / std::sqrt(rows_counted);
  report.bound = ratio * report.eager_error + (chance + 4 * epsilon(DType::kF32)) * ours.mean_magnitude();
  report.ok = ours.mismatch.empty() && report.mean_error <= report.bound;
  if (!ours.mismatch.empty()) {
    report.reason = ours.mismatch;
  } else if (!report.ok) {
    report.reason = fmt::format("mean error {:.3g} is above the bound {:.3g}", report.mean_error, report.bound);
  }
  if (report.ok && arguments.lse) {
    check_rows("lse", *arguments.lse, want.lse, report);
  }
  if (report.ok && arguments.row_max) {
    check_rows("row_max", *arguments.row_max, want.row_max, report);
  }
  return report;
}

}  // namespace flashlift::problem
