// Runs the derivative of a score_mod one score at a time: in f64 for the oracle, in f32 for eager maths.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "problem/bound_problem.h"
#include "score/derivative.h"

namespace flashlift::problem {

template <typename Real>
class ScoreDerivative {
 public:
  // With respect to the score, and to every load of a float captured tensor. The problem must have a score_mod.
  ScoreDerivative(const Problem& problem, const AttentionArguments& arguments)
      : problem_(problem),
        arguments_(arguments),
        derivative_(score::differentiate(score::SimplifiedProgram(*problem.score_mod),
                                         std::vector<bool>(problem.score_mod->captures.size(), true))),
        views_(views_of(derivative_.body, problem, arguments.captures)),
        interpreter_(derivative_.body, views_) {}
  ScoreDerivative(const ScoreDerivative&) = delete;
  ScoreDerivative& operator=(const ScoreDerivative&) = delete;

  void run(Real product, const score::Coordinates& at) { interpreter_.score_mod(product, at); }
  const std::vector<score::LoadDerivative>& loads() const { return derivative_.loads; }
  // The captured tensor of the problem that a load reads.
  size_t capture_of(const score::LoadDerivative& load) const {
    const Capture& read = derivative_.body.captures[derivative_.body.nodes[load.load].payload];
    return static_cast<size_t>(std::find(problem_.captures.begin(), problem_.captures.end(), read) -
                               problem_.captures.begin());
  }

  // Results of the last run: the gradients of the score and of what a load reads, from `ds`, that of the result.
  Real through_score(Real ds) const { return product(ds, d_score(), derivative_.selects); }
  Real through_load(Real ds, const score::LoadDerivative& load) const {
    return product(ds, weight(load), load.selects);
  }
  Real d_score() const { return static_cast<Real>(interpreter_.real(derivative_.d_score)); }
  Real weight(const score::LoadDerivative& load) const { return static_cast<Real>(interpreter_.real(load.weight)); }
  // The logical index of the element that was read; nothing for an empty tensor, whose loads give the constant 0.
  std::optional<int64_t> element_of(const score::LoadDerivative& load) const {
    const TensorView& view = arguments_.captures[capture_of(load)];
    const std::vector<ValueId>& indices = derivative_.body.nodes[load.load].operands;
    int64_t at = 0;
    for (int d = 0; d < view.rank; ++d) {
      if (view.sizes[d] == 0) {
        return std::nullopt;
      }
      at = at * view.sizes[d] + std::clamp<int64_t>(interpreter_.integer(indices[d]), 0, view.sizes[d] - 1);
    }
    return at;
  }

 private:
  // What a select leaves out gets no gradient, even if ds is NaN.
  static Real product(Real ds, Real weight, bool selects) { return selects && weight == 0 ? Real(0) : ds * weight; }

  const Problem& problem_;
  const AttentionArguments& arguments_;
  score::Derivative derivative_;
  std::vector<TensorView> views_;
  score::BasicInterpreter<Real> interpreter_;
};

}  // namespace flashlift::problem
