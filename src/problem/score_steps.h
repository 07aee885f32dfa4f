// Computes how far lse and row maxima may be from the oracle's if a score_mod has steps: a score beside a step may fall
// on either side of it because of an f32 error that has no other effect.
#pragma once

#include "problem/bound_problem.h"

namespace flashlift::problem {

// Whether a score_mod rounds a value computed from the score, or branches on it.
bool has_score_steps(const Program& score_mod);

struct Range {
  double low = 0;
  double high = 0;
};

class ScoreSteps : public BoundProblem<double> {
 public:
  using BoundProblem<double>::BoundProblem;

  // Computes the ranges of one query's row, with each score varied by a few f32 roundings in both directions.
  void compute(int64_t b, int64_t h, int64_t i);
  Range lse() const { return lse_; }
  Range row_max() const { return row_max_; }

 private:
  Range score(int64_t b, int64_t h, int64_t i, int64_t j);

  std::vector<Range> scores_;
  Range lse_;
  Range row_max_;
};

}  // namespace flashlift::problem
