// One row of scores in double precision, for both directions of the oracle.
#pragma once

#include <vector>

#include "problem/bound_problem.h"

namespace flashlift::problem {

class OracleRows : public BoundProblem<double> {
 public:
  using BoundProblem<double>::BoundProblem;

  // Computes the scores of one query with all keys.
  void compute(int64_t b, int64_t h, int64_t i);
  // After score_mod, -inf where mask_mod masks.
  const std::vector<double>& scores() const { return scores_; }
  // scale * <q, k>. Masked keys have one only if no mask_mod masks them.
  const std::vector<double>& products() const { return products_; }

  double dropout_factor(int64_t b, int64_t h, int64_t i, int64_t j) const;

 private:
  std::vector<double> scores_;
  std::vector<double> products_;
};

}  // namespace flashlift::problem
