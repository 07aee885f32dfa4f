// The gradient of a small tensor, kept by groups of query rows, which have errors of their own.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace flashlift::problem {

// Of a tensor of a few elements, eager maths shows each element's error once: often a lucky draw. But the element is a
// sum over the query rows, and these tell how large its error tends to be.
class GradientParts {
 public:
  GradientParts() = default;
  explicit GradientParts(int64_t elements) : sums_(elements <= kMostElements ? elements : 0) {}

  void add(int64_t row, int64_t element, double term) {
    if (!sums_.empty()) {
      sums_[static_cast<size_t>(element)][static_cast<size_t>(row % kParts)] += term;
    }
  }

  // The standard deviation of each element's error: of a sum of independent errors, one of each part. Empty for a
  // tensor of many elements.
  std::vector<double> deviations(const GradientParts& exact) const {
    std::vector<double> deviations;
    for (size_t i = 0; i < sums_.size(); ++i) {
      double squares = 0;
      for (size_t part = 0; part < sums_[i].size(); ++part) {
        const double error = sums_[i][part] - exact.sums_[i][part];
        squares += error * error;
      }
      deviations.push_back(std::sqrt(squares));
    }
    return deviations;
  }

 private:
  static constexpr int64_t kMostElements = 16;
  static constexpr int64_t kParts = 64;

  std::vector<std::array<double, kParts>> sums_;
};

}  // namespace flashlift::problem
