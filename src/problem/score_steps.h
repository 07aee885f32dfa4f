// How far lse and row maxima may lie from the oracle's where a score_mod has steps: a score beside one may take either
// side, by an error of f32 that is nothing elsewhere.
#pragma once

#include "problem/bound_problem.h"

namespace flashlift::problem {

// Whether a score_mod rounds what the score has come to, or branches on it.
bool has_score_steps(const Program& score_mod);

struct Range {
  double low = 0;
  double high = 0;
};

class ScoreSteps : public BoundProblem<double> {
 public:
  using BoundProblem<double>::BoundProblem;

  // Computes the ranges of one query's row, each score taken a few f32 roundings below and above what it is.
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
