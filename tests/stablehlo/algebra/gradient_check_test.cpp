#include "stablehlo/algebra/gradient_check.h"

#include "stablehlo/algebra/formulas.h"

namespace flashlift::stablehlo {
namespace {

class GradientOf : public Formulas {
 protected:
  void SetUp() override {
    auto found = match(p_);
    ASSERT_TRUE(found.ok()) << found.error().text;
    softmax_ = *found;
  }
  // p (dp - sum p dp), times `slope`.
  SymId gradient(SymId slope) {
    const SymId row = sum(op(Op::k_mul, {p_, dp_}));
    return op(Op::k_mul, {op(Op::k_mul, {p_, op(Op::k_sub, {dp_, row})}), slope});
  }

  SymId cap_ = op(Op::k_tanh, {score_});
  SymId p_ = softmax_of(cap_);
  SymId dp_ = plane(0);
  SymId slope_ = op(Op::k_sub, {arena_.f32(1), op(Op::k_mul, {cap_, cap_})});
  std::vector<int64_t> sizes_ = sizes();
  Softmax softmax_;
  GradientParts parts_{.probability = p_, .undropped = p_, .d_probability = dp_};
  GradientCheck check_{arena_, sizes_, softmax_, parts_, false, {}, [](SymId) { return false; }};
};

TEST_F(GradientOf, AScore) {
  const SymId shifted = score_with_shift(arena_, softmax_, score_);
  EXPECT_TRUE(check_.is_gradient(gradient(slope_), shifted).ok());
  const Proof other = check_.is_gradient(gradient(arena_.f32(1)), shifted);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().reason, Reason::kNotGradientOfScores);
}

TEST_F(GradientOf, AScoreByAnotherFunctionOrTensor) {
  const SymId shifted = score_with_shift(arena_, softmax_, score_);
  const Proof reads = check_.is_gradient(gradient(op(Op::k_mul, {slope_, plane(3)})), shifted);
  ASSERT_FALSE(reads.ok());
  EXPECT_EQ(reads.error().reason, Reason::kReadsMore);
  // Its value is 1 for all scores that the check draws.
  const SymId far = op(Op::k_sigmoid, {op(Op::k_sub, {arena_.f32(1e9F), score_})});
  const Proof applies = check_.is_gradient(gradient(op(Op::k_mul, {slope_, far})), shifted);
  ASSERT_FALSE(applies.ok());
  EXPECT_EQ(applies.error().reason, Reason::kComputesMore);
}

TEST_F(GradientOf, TheValues) {
  EXPECT_TRUE(check_.is_probability(p_).ok());
  const Proof scaled = check_.is_probability(op(Op::k_mul, {p_, arena_.f32(1.001F)}));
  ASSERT_FALSE(scaled.ok());
  EXPECT_EQ(scaled.error().reason, Reason::kNotProbabilities);
}

}  // namespace
}  // namespace flashlift::stablehlo
