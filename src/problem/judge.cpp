#include "problem/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "problem/elements.h"

namespace flashlift::problem {
namespace {

constexpr double kMeanFactor = 1.1;
constexpr double kLargestFactor = 3.0;
constexpr double kChance = 3.0;
const double kTermRounding = 4 * std::ldexp(1.0, -24);
// Products of bf16 flush terms below the smallest normal f32 to zero. This bounds a sum of some such terms.
const double kFlushed = 64 * std::ldexp(1.0, -126);

// The f32 rounding error of a sum of terms with these magnitudes.
double rounding_of_terms(double magnitudes) { return kTermRounding * magnitudes + kFlushed; }

struct Format {
  int digits;    // number of bits of the significand
  int smallest;  // exponent of the smallest number above 0
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {8, -133};
    case DType::kF16:
      return {11, -24};
    case DType::kF64:
      return {53, -1074};
    default:
      return {24, -149};
  }
}

double unit_in_last_place(DType dtype, double value) {
  const Format format = format_of(dtype);
  const int exponent = value > 0 ? std::ilogb(value) : format.smallest;
  return std::ldexp(1.0, std::max(exponent - format.digits + 1, format.smallest));
}

// The sum and the maximum over the elements of a row, or of all rows.
struct Errors {
  double sum = 0;
  double largest = 0;
  int64_t count = 0;

  void add(double error) {
    sum += error;
    largest = std::max(largest, error);
    ++count;
  }
  void add(const Errors& row) {
    sum += row.sum;
    largest = std::max(largest, row.largest);
    count += row.count;
  }
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
};

struct Row {
  Errors ours;
  Errors eager;
  Errors size;   // |want|
  Errors terms;  // their magnitudes
};

std::string place(const TensorView& view, int64_t index, int64_t row_width) {
  std::string text;
  for (int d = view.rank - 1; d >= 0; --d) {
    const bool whole = row_width > 1 && d == view.rank - 1;
    text = fmt::format("{}{}{}", whole ? ":" : std::to_string(index % view.sizes[d]), text.empty() ? "" : ",", text);
    index /= view.sizes[d];
  }
  return fmt::format("[{}]", text);
}

class Judge {
 public:
  explicit Judge(const Subject& subject) : subject_(subject) { judgement_.tensor = subject.name; }

  Judgement run() {
    const int64_t width = std::max<int64_t>(1, subject_.row_width);
    const int64_t count = subject_.got.element_count();
    rows_.resize(static_cast<size_t>((count + width - 1) / width));
    for (int64_t i = 0; i < count; ++i) {
      add_element(rows_[static_cast<size_t>(i / width)], i);
    }
    double inexact_rows = 0;
    for (const Row& row : rows_) {
      inexact_rows += row.ours.sum > 0 || row.eager.sum > 0 ? 1 : 0;
      all_.ours.add(row.ours);
      all_.eager.add(row.eager);
      all_.size.add(row.size);
      all_.terms.add(row.terms);
    }
    chance_ = kChance / std::sqrt(std::max(1.0, std::min(subject_.samples, inexact_rows)));
    if (all_.ours.count > 0) {
      judge_mean();
      judge_largest();
      judge_rows(width);
    }
    return std::move(judgement_);
  }

 private:
  // There is one reason for each judgement, so that the worst row is named whatever else failed.
  void fail(const std::string& reason) {
    judgement_.ok = false;
    judgement_.reason += (judgement_.reason.empty() ? "" : "; ") + reason;
  }

  void add_element(Row& row, int64_t i) {
    const auto at = static_cast<size_t>(i);
    const double want = subject_.want.empty() ? 0.0 : subject_.want[at];
    const double eager = subject_.eager.empty() ? 0.0 : subject_.eager[at];
    const double got = read_float(subject_.got, element_offset(subject_.got, i));
    const double terms = subject_.magnitudes.empty() ? std::abs(want) : subject_.magnitudes[at];
    if (!std::isfinite(want) || !std::isfinite(got)) {
      const bool sums_overflow = std::isfinite(want) && terms > std::numeric_limits<float>::max();
      const bool same = subject_.same_non_finite ? (std::isnan(got) && std::isnan(want)) || got == want
                                                 : std::isfinite(got) == std::isfinite(want) || !std::isfinite(eager);
      if (!same && !sums_overflow && judgement_.ok) {  // only the first one is reported
        fail(fmt::format("expected {} at {}{}, got {}", want, subject_.name, place(subject_.got, i, 1), got));
      }
      return;
    }
    row.ours.add(std::abs(got - want));
    row.size.add(std::abs(want));
    row.terms.add(std::isfinite(terms) ? terms : 0.0);
    if (std::isfinite(eager)) {  // an overflow in a 16-bit dtype is not counted
      const double deviation = subject_.deviations.empty() ? 0.0 : subject_.deviations[at];
      row.eager.add(std::max(std::abs(eager - want), std::isfinite(deviation) ? deviation : 0.0));
    }
  }

  void judge_mean() {
    // The rounding error of an element is uniform within a unit, so that the mean over n of them varies by 1 / sqrt(n).
    const double rounding = std::ldexp(all_.size.mean(), -format_of(subject_.got.dtype).digits) /
                            std::sqrt(static_cast<double>(all_.ours.count));
    Measure& mean = judgement_.mean;
    mean = {.error = all_.ours.mean(), .eager = all_.eager.mean()};
    mean.limit = (kMeanFactor + chance_) * mean.eager + rounding + rounding_of_terms(all_.terms.mean());
    if (!mean.ok()) {
      fail(fmt::format("mean error of {} {:.3g} is above the limit {:.3g}", subject_.name, mean.error, mean.limit));
    }
  }

  void judge_largest() {
    Measure& largest = judgement_.largest;
    largest = {.error = all_.ours.largest, .eager = all_.eager.largest};
    largest.limit = (kLargestFactor + chance_) * largest.eager +
                    unit_in_last_place(subject_.got.dtype, all_.size.largest) + rounding_of_terms(all_.terms.largest);
    if (!largest.ok()) {
      fail(fmt::format("largest error of {} {:.3g} is above the limit {:.3g}", subject_.name, largest.error,
                       largest.limit));
    }
  }

  // Sorts eager's rows by size, each with the largest mean error among the rows up to this size.
  void sort_rows() {
    for (const Row& row : rows_) {
      if (row.eager.count > 0 && (row.size.sum > 0 || row.eager.sum > 0)) {
        sizes_.emplace_back(row.size.mean(), row.eager.mean());
      }
    }
    std::sort(sizes_.begin(), sizes_.end());
    for (size_t i = 1; i < sizes_.size(); ++i) {
      sizes_[i].second = std::max(sizes_[i].second, sizes_[i - 1].second);
    }
  }

  // The largest mean error among eager's rows of up to twice the size.
  double eager_row(double size) const {
    if (sizes_.empty()) {
      return 0;
    }
    constexpr size_t kLeastRows = 16;
    const auto larger =
        std::upper_bound(sizes_.begin(), sizes_.end(), std::pair(2 * size, std::numeric_limits<double>::infinity()));
    const size_t least = std::min(sizes_.size(), std::max(kLeastRows, sizes_.size() / 2));
    return sizes_[std::max(static_cast<size_t>(larger - sizes_.begin()), least) - 1].second;
  }

  void judge_rows(int64_t width) {
    sort_rows();
    size_t worst = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      Measure measure{.error = row.ours.mean(), .eager = eager_row(row.size.mean())};
      measure.limit = (kLargestFactor + chance_) * measure.eager +
                      unit_in_last_place(subject_.got.dtype, row.size.largest) + rounding_of_terms(row.terms.mean());
      if (i == 0 || measure.ratio() > judgement_.row.ratio()) {
        judgement_.row = measure;
        worst = i;
      }
    }
    const Measure& row = judgement_.row;
    if (!row.ok()) {
      fail(fmt::format("mean error of the row {}{} {:.3g} is above the limit {:.3g}", subject_.name,
                       place(subject_.got, static_cast<int64_t>(worst) * width, width), row.error, row.limit));
    }
  }

  const Subject& subject_;
  double chance_ = 0;
  std::vector<Row> rows_;
  Row all_;
  std::vector<std::pair<double, double>> sizes_;
  Judgement judgement_;
};

}  // namespace

double Measure::ratio() const {
  return limit > 0 ? error / limit : error > 0 ? std::numeric_limits<double>::infinity() : 0.0;
}

double Judgement::ratio() const { return std::max({mean.ratio(), largest.ratio(), row.ratio()}); }

Judgement judge(const Subject& subject) { return Judge(subject).run(); }

}  // namespace flashlift::problem
