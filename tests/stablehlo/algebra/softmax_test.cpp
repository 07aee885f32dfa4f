#include "stablehlo/algebra/softmax.h"

#include <cmath>

#include "stablehlo/algebra/formulas.h"

namespace flashlift::stablehlo {
namespace {

class SoftmaxOf : public Formulas {
 protected:
  Reason reason(SymId probability) {
    const auto found = match(probability);
    EXPECT_FALSE(found.ok());
    return found.ok() ? Reason::kInvalidProblem : found.error().reason;
  }
};

TEST_F(SoftmaxOf, TheMaximumCancels) {
  const auto found = match(softmax_of(score_));
  ASSERT_TRUE(found.ok()) << found.error().text;
  EXPECT_EQ(found->score, score_);
  EXPECT_NE(found->maximum, kNoSym);
  EXPECT_FALSE(found->needs_maximum);
}

TEST_F(SoftmaxOf, WithoutAMaximum) {
  const SymId e = op(Op::k_exp, {score_});
  const auto found = match(op(Op::k_mul, {e, op(Op::k_div, {arena_.f32(1), sum(e)})}));
  ASSERT_TRUE(found.ok()) << found.error().text;
  EXPECT_EQ(found->score, score_);
  EXPECT_EQ(found->maximum, kNoSym);
}

TEST_F(SoftmaxOf, ConditionsBecomeGuards) {
  const auto found = match(softmax_of(masked(causal_, -INFINITY)));
  ASSERT_TRUE(found.ok()) << found.error().text;
  EXPECT_EQ(found->guards, std::vector<SymId>{causal_});
  EXPECT_EQ(found->score, score_);
}

TEST_F(SoftmaxOf, AnAddedLogitIsASink) {
  const SymId shift = maximum(score_);
  const SymId e = op(Op::k_exp, {op(Op::k_sub, {score_, shift})});
  const SymId sink = op(Op::k_exp, {op(Op::k_sub, {of_row(0), shift})});
  const auto found = match(op(Op::k_div, {e, op(Op::k_add, {sum(e), sink})}));
  ASSERT_TRUE(found.ok()) << found.error().text;
  EXPECT_EQ(found->sinks, std::vector<SymId>{of_row(0)});
}

TEST_F(SoftmaxOf, AConditionTimesAConstantIsDropout) {
  const SymId keep = plane(1, Type::kI1);
  const SymId kept = op(Op::k_select, {keep, softmax_of(score_), arena_.f32(0)});
  const auto found = match(op(Op::k_div, {kept, arena_.f32(0.5F)}));
  ASSERT_TRUE(found.ok()) << found.error().text;
  EXPECT_EQ(found->keep, std::vector<SymId>{keep});
  EXPECT_EQ(found->keep_factor, 2);
  EXPECT_TRUE(found->keep_selects);
  EXPECT_EQ(reason(op(Op::k_mul, {kept, arena_.f32(0.5F)})), Reason::kKeepFactor);
}

TEST_F(SoftmaxOf, AConditionOnTheRowIsDropoutOnlyBesideOneOnTheKey) {
  const SymId of_queries = of_row(0, Type::kI1);
  const SymId of_keys = plane(1, Type::kI1);
  const auto where = [&](SymId condition, SymId kept, float otherwise) {
    return op(Op::k_select, {condition, kept, arena_.f32(otherwise)});
  };
  const SymId both = op(Op::k_and, {of_queries, of_keys});
  const SymId probability = softmax_of(masked(both, -1e9F));
  const auto found = match(where(both, probability, 0));
  ASSERT_TRUE(found.ok()) << found.error().text;
  EXPECT_EQ(found->keep.size(), 2U);
  EXPECT_EQ(without_dropout(arena_, where(both, probability, 0), *found), probability) << "scores stay masked";
  EXPECT_EQ(reason(where(of_queries, softmax_of(masked(of_keys, -1e9F)), 0)), Reason::kClearedRows);
}

TEST_F(SoftmaxOf, AGuardOfTheDivisorNeedsTheMaximum) {
  const SymId shifted = op(Op::k_exp, {op(Op::k_sub, {score_, maximum(score_)})});
  const SymId bare = op(Op::k_exp, {score_});
  const auto guarded = [&](SymId e) { return op(Op::k_div, {e, op(Op::k_max, {sum(e), arena_.f32(1e-6F)})}); };
  const auto found = match(guarded(shifted));
  ASSERT_TRUE(found.ok()) << found.error().text;
  EXPECT_TRUE(found->needs_maximum);
  EXPECT_EQ(reason(guarded(bare)), Reason::kGuardMayAct);
}

TEST_F(SoftmaxOf, RefusesWhatIsNone) {
  const SymId e = op(Op::k_exp, {score_});
  EXPECT_EQ(reason(score_), Reason::kNoExponential);
  EXPECT_EQ(reason(e), Reason::kNotDivided);
  EXPECT_EQ(reason(op(Op::k_div, {e, plane(0)})), Reason::kDivisorOfKeys);
  EXPECT_EQ(reason(op(Op::k_div, {e, sum(op(Op::k_exp, {plane(0)}))})), Reason::kOtherExponentials);
  EXPECT_EQ(reason(op(Op::k_mul, {softmax_of(score_), plane(0)})), Reason::kOwnWeights);
  EXPECT_EQ(reason(op(Op::k_mul, {softmax_of(score_), arena_.f32(3)})), Reason::kScaledRows);
  const SymId lowered = op(Op::k_exp, {op(Op::k_sub, {score_, maximum(score_)})});
  EXPECT_EQ(reason(op(Op::k_div, {lowered, sum(e)})), Reason::kSumShifted);
}

TEST_F(SoftmaxOf, LogSumExp) {
  const auto found = match(softmax_of(score_));
  ASSERT_TRUE(found.ok());
  const SymId shift = maximum(score_);
  const SymId log = op(Op::k_log, {sum(op(Op::k_exp, {op(Op::k_sub, {score_, shift})}))});
  EXPECT_TRUE(is_log_sum_exp(arena_, op(Op::k_add, {shift, log}), *found));
  EXPECT_FALSE(is_log_sum_exp(arena_, log, *found));
}

TEST_F(SoftmaxOf, LogSumExpWithASink) {
  const SymId shift = maximum(score_);
  const SymId e = op(Op::k_exp, {op(Op::k_sub, {score_, shift})});
  const auto with = [&](SymId logit, int64_t count = 1) {  // a logit after the scores
    const ReducePiece sink{.body = op(Op::k_exp, {op(Op::k_sub, {logit, shift})}), .size = count, .atom = -1};
    return arena_.reduce(ReduceKind::kAdd, {{.body = e, .size = kKeys, .atom = kKeyAtom}, sink});
  };
  const auto log_sum_exp = [&](SymId z) { return op(Op::k_add, {shift, op(Op::k_log, {z})}); };
  const auto found = match(op(Op::k_div, {e, with(of_row(0))}));
  ASSERT_TRUE(found.ok()) << found.error().text;
  EXPECT_TRUE(is_log_sum_exp(arena_, log_sum_exp(with(of_row(0))), *found));
  EXPECT_FALSE(is_log_sum_exp(arena_, log_sum_exp(with(of_row(1))), *found));
  EXPECT_FALSE(is_log_sum_exp(arena_, log_sum_exp(sum(e)), *found));
  EXPECT_FALSE(is_log_sum_exp(arena_, log_sum_exp(with(of_row(0), 2)), *found));
}

TEST_F(SoftmaxOf, ASinkJoinsTheLogSumExp) {
  const SymId shift = maximum(score_);
  const SymId log = op(Op::k_log, {sum(op(Op::k_exp, {op(Op::k_sub, {score_, shift})}))});
  const SymId lse = op(Op::k_add, {log, shift});
  const SymId sink = of_row(0);
  const auto less = [&](SymId x, SymId y) { return op(Op::k_sub, {x, y}); };
  const auto e = [&](SymId x) { return op(Op::k_exp, {x}); };
  const auto one_more = [&](SymId x) { return op(Op::k_log1p, {e(x)}); };
  const auto by_distance = [&](SymId x, SymId y, float times = 1) {
    const SymId distance = op(Op::k_mul, {op(Op::k_neg, {op(Op::k_abs, {less(x, y)})}), arena_.f32(times)});
    return op(Op::k_add, {op(Op::k_max, {x, y}), one_more(distance)});
  };
  const auto with_nan = [&](SymId x, SymId y, SymId nan) {  // as jax.numpy.logaddexp
    const SymId is_nan = op(Op::k_ne, {less(x, y), less(x, y)});
    return op(Op::k_select, {is_nan, nan, by_distance(x, y)});
  };
  const auto below = [&](SymId top) {
    return op(Op::k_add, {top, op(Op::k_log, {op(Op::k_add, {e(less(lse, top)), e(less(sink, top))})})});
  };
  const SymId zero = arena_.f32(0);
  const SymId behind = less(sink, lse);
  const std::vector<SymId> joined = {
      by_distance(lse, sink),
      by_distance(sink, lse),
      with_nan(lse, sink, op(Op::k_add, {lse, sink})),
      below(op(Op::k_max, {lse, sink})),
      op(Op::k_log, {op(Op::k_add, {e(lse), e(sink)})}),
      op(Op::k_add, {lse, one_more(behind)}),
      op(Op::k_add, {lse, with_nan(behind, zero, behind)}),
      op(Op::k_add, {lse, op(Op::k_log, {op(Op::k_add, {arena_.f32(1), e(behind)})})}),
  };
  for (const SymId total : joined) {
    const auto found = match(e(less(score_, total)));
    ASSERT_TRUE(found.ok()) << found.error().text;
    EXPECT_EQ(found->score, score_);
    EXPECT_EQ(found->sinks, std::vector<SymId>{sink});
    EXPECT_NE(found->maximum, kNoSym);
    EXPECT_TRUE(found->rounds_logarithm);
    EXPECT_TRUE(is_log_sum_exp(arena_, total, *found));
    EXPECT_FALSE(is_log_sum_exp(arena_, lse, *found));
  }
  const std::vector<SymId> others = {
      op(Op::k_max, {lse, sink}),
      by_distance(lse, sink, 2),
      by_distance(lse, lse),
      with_nan(lse, sink, zero),
      with_nan(lse, sink, sink),
      below(sink),
      below(op(Op::k_min, {lse, sink})),
      op(Op::k_log, {op(Op::k_add, {e(lse), sink})}),
      op(Op::k_add, {lse, one_more(less(lse, sink))}),
      by_distance(lse, op(Op::k_add, {sink, score_})),
  };
  for (const SymId total : others) {
    EXPECT_FALSE(match(e(less(score_, total))).ok());
  }
}

TEST_F(SoftmaxOf, SumsOfSumsAreReadInTime) {
  SymId total = op(Op::k_log, {sum(op(Op::k_exp, {score_}))});
  for (int i = 0; i < 200; ++i) {
    total = op(Op::k_log, {op(Op::k_add, {op(Op::k_exp, {total}), op(Op::k_exp, {op(Op::k_neg, {total})})})});
  }
  EXPECT_FALSE(match(op(Op::k_exp, {op(Op::k_sub, {score_, total})})).ok());
}

TEST_F(SoftmaxOf, RenormalisedIsASoftmaxOfWhatIsLeft) {
  const SymId p = softmax_of(score_);
  const SymId kept = op(Op::k_select, {causal_, p, arena_.f32(0)});
  for (const SymId part : {p, kept}) {
    const auto found = match(op(Op::k_div, {part, sum(part)}));
    ASSERT_TRUE(found.ok()) << found.error().text;
    EXPECT_EQ(found->score, score_);
    EXPECT_EQ(found->guards.size(), part == kept ? 1U : 0U);
  }
  EXPECT_FALSE(match(op(Op::k_div, {p, sum(kept)})).ok());
  EXPECT_FALSE(match(op(Op::k_div, {kept, op(Op::k_add, {sum(kept), arena_.f32(1e-9F)})})).ok());
  // Any other divisor may be 0 in a row.
  const SymId other = op(Op::k_div, {op(Op::k_exp, {score_}), of_row(0)});
  EXPECT_FALSE(match(op(Op::k_div, {other, sum(other)})).ok());
}

}  // namespace
}  // namespace flashlift::stablehlo
