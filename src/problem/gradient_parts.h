// The gradient of a small tensor, split by groups of query rows, whose errors are independent.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace flashlift::problem {

// For a tensor of a few elements, eager maths gives a single error for each, which often is small by chance. But each
// element is a sum over the query rows, and their errors show how large its error usually is.
class GradientParts {
 public:
  GradientParts() = default;
  explicit GradientParts(int64_t elements) : sums_(elements <= kMostElements ? elements : 0) {}

  void add(int64_t row, int64_t element, double term) {
    if (!sums_.empty()) {
      sums_[static_cast<size_t>(element)][static_cast<size_t>(row % kParts)] += term;
    }
  }

  // The standard deviation of each element's error, as that of a sum of independent errors, one for each part. Empty
  // for a tensor of many elements.
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
