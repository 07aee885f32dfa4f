// One row of scores and probabilities in unfused maths, for both directions of the eager maths.
#pragma once

#include <algorithm>
#include <vector>

#include "problem/bound_problem.h"

namespace flashlift::problem {

float round_to(DType dtype, float value);

// Kernels may flush f32's subnormal numbers to zero. That is an error of up to 2^-126, which is as large as the
// rounding of this number: magnitudes of terms are therefore computed as if no factor and no product were smaller.
constexpr double kLeastMagnitude = 0x1p-102;

// The magnitude of a product of f32 numbers of these magnitudes.
inline double product_magnitude(double x, double y) {
  return std::max(std::max(x, kLeastMagnitude) * std::max(y, kLeastMagnitude), kLeastMagnitude);
}

class EagerRows : public BoundProblem<float> {
 public:
  EagerRows(const Problem& problem, const AttentionArguments& arguments);

  // Computes the row of one query.
  void compute(int64_t b, int64_t h, int64_t i);
  // Whether no key and no sink is left: then empty_rows determines the probabilities.
  bool empty() const { return empty_; }
  // scale * <q, k> of every key, the dot product rounded to the problem's dtype.
  const std::vector<float>& products() const { return products_; }
  // After score_mod, -inf where mask_mod masks.
  const std::vector<float>& scores() const { return scores_; }
  // The softmax, in f32. Without normalisation, the exponentials.
  const std::vector<float>& probabilities() const { return probabilities_; }
  // As in the oracle.
  float lse() const { return lse_; }
  float row_max() const { return row_max_; }
  float sink_probability(int64_t r) const { return sink_probabilities_[static_cast<size_t>(r)]; }

 private:
  void fill_scores(int64_t b, int64_t h, int64_t i);
  void softmax(int64_t h);

  bool empty_ = false;
  float lse_ = 0;
  float row_max_ = 0;
  std::vector<float> products_;
  std::vector<float> scores_;
  std::vector<float> probabilities_;
  std::vector<float> sink_probabilities_;
};

}  // namespace flashlift::problem
