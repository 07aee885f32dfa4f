// Sums over some of the score plane's dimensions: the gradients of terms of the score and of the sinks.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "llvm/ADT/DenseMap.h"
#include "stablehlo/algebra/gradient_check.h"
#include "stablehlo/lift/stages.h"

namespace flashlift::stablehlo {

// Follows all values that are computed from the scores. Each must end in the output, in a product that is a gradient,
// in the row log-sum-exp or in such a sum.
class GradientSums {
 public:
  // `uses.ends` has all products that are not gradients. Finds `log_sum_exp`, if it is not yet known and the values
  // reach it.
  GradientSums(Plane& plane, const Forward& forward, const ScoreUses& uses, GradientCheck& check,
               bool has_d_probability, std::optional<LogSumExp>& log_sum_exp)
      : plane_(plane),
        forward_(forward),
        uses_(uses),
        check_(check),
        has_d_probability_(has_d_probability),
        log_sum_exp_(log_sum_exp) {}

  Outcome<std::vector<SumExit>> find();

 private:
  bool is_inner(mlir::Operation* op);
  Refusal reaches(mlir::Operation* user) const;
  Proof leave(mlir::Operation* op);
  Proof leave_as_sum(const PlaneSum& sum, mlir::Operation* user);
  Proof leave_by(const PlaneSum& sum, const std::function<Proof()>& further);
  bool is_left_by_further_sums(const std::function<Proof()>& further);
  void leave_out_steps();
  Proof check_terms();
  PlaneSum sum_at(mlir::Operation* op) const;
  std::optional<PlaneSum> sum_behind(mlir::Operation* op, int steps);
  std::optional<PlaneSum> added(const PlaneSum& sum, mlir::Operation* user, int steps);
  std::optional<PlaneSum> summed_further(const PlaneSum& sum, mlir::Operation* user, int steps);
  bool leave_as_log_sum_exp(mlir::Operation* op);
  bool is_sinks_gradient(const PlaneSum& sum);
  bool depends_on(SymId formula, int atom);
  std::optional<Term> term_with_gradient(const PlaneSum& sum);

  Plane& plane_;
  const Forward& forward_;
  const ScoreUses& uses_;
  GradientCheck& check_;
  bool has_d_probability_;
  std::optional<LogSumExp>& log_sum_exp_;
  bool may_go_further_ = true;  // to the gradients that are furthest from the scores
  bool went_further_ = false;
  std::vector<SumExit> sums_;
  llvm::DenseMap<mlir::Operation*, bool> inner_;
  llvm::DenseMap<mlir::Operation*, Proof> left_;
  llvm::DenseMap<mlir::Operation*, Proof> left_as_sum_;
  llvm::DenseMap<mlir::Operation*, std::optional<PlaneSum>> behind_;  // sum_behind()
};

}  // namespace flashlift::stablehlo
