// The results of rows without keys, and finite constants that mask.
#include <cmath>

#include "stablehlo/algebra/formulas.h"
#include "stablehlo/algebra/softmax.h"

namespace flashlift::stablehlo {
namespace {

class Masks : public Formulas {
 protected:
  KnownBounds known() const {
    return {.sizes = sizes_, .largest_score = 0x1p24, .leaf = [](int64_t) -> std::optional<score::Interval> {
              return std::nullopt;
            }};
  }
  FiniteMasks extract(SymId score, Softmax& softmax) {
    auto found = match(softmax_of(score));
    EXPECT_TRUE(found.ok());
    softmax = *found;
    return extract_finite_masks(arena_, softmax, known(), false);
  }

  std::vector<int64_t> sizes_ = sizes();
};

TEST_F(Masks, RowsWithoutKeys) {
  const SymId probability = softmax_of(masked(causal_, -INFINITY));
  const auto found = match(probability);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*classify_empty_rows(arena_, sizes_, probability, *found, {.conditions = true}), EmptyRows::kNan);
  const SymId any = over_keys(ReduceKind::kOr, causal_);
  const SymId cleared = op(Op::k_select, {any, probability, arena_.f32(0)});
  EXPECT_EQ(*classify_empty_rows(arena_, sizes_, cleared, *found, {.conditions = true}), EmptyRows::kZero);
  const auto other = classify_empty_rows(arena_, sizes_, op(Op::k_select, {any, probability, arena_.f32(0.9F)}), *found,
                                         {.conditions = true});
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().reason, Reason::kRowsWithoutKeys);
}

// An element of a tensor, or the row's position, decides whether the result is 0 or NaN.
TEST_F(Masks, RowsWithoutKeysThatDiffer) {
  const SymId probability = softmax_of(masked(causal_, -INFINITY));
  const auto found = match(probability);
  ASSERT_TRUE(found.ok());
  const SymId any = over_keys(ReduceKind::kOr, causal_);
  const SymId conditions[] = {op(Op::k_lt, {of_row(3), arena_.f32(0.5F)}), of_row(4, Type::kI1),
                              op(Op::k_eq, {of_row(5), arena_.f32(0)}), op(Op::k_lt, {row_, arena_.i32(2)})};
  for (const SymId condition : conditions) {
    const SymId otherwise = op(Op::k_select, {condition, arena_.f32(0), arena_.f32(NAN)});
    const auto rows = classify_empty_rows(arena_, sizes_, op(Op::k_select, {any, probability, otherwise}), *found,
                                          {.conditions = true});
    ASSERT_FALSE(rows.ok());
    EXPECT_EQ(rows.error().reason, Reason::kRowsWithoutKeys);
  }
}

TEST_F(Masks, AFarConstantMasksWhereEachRowKeepsAKey) {
  Softmax softmax;
  EXPECT_EQ(extract(masked(causal_, -1e30F), softmax), FiniteMasks::kInRowsWithKeys);
  EXPECT_EQ(softmax.guards, std::vector<SymId>{causal_});
  EXPECT_EQ(softmax.score, score_);
}

TEST_F(Masks, AConstantThatScoresReachStaysArithmetic) {
  Softmax softmax;
  EXPECT_EQ(extract(masked(causal_, -1000), softmax), FiniteMasks::kNone);
  EXPECT_TRUE(softmax.guards.empty());
}

TEST_F(Masks, RowsThatMayKeepNoKeyHaveOneNumber) {
  const SymId condition = plane(0, Type::kI1);
  Softmax softmax;
  EXPECT_EQ(extract(masked(condition, -1e30F), softmax), FiniteMasks::kInAllRows);
  EXPECT_EQ(extract(op(Op::k_select, {condition, score_, op(Op::k_add, {arena_.f32(-1e9F), plane(1)})}), softmax),
            FiniteMasks::kNone)
      << "a tensor tells masked keys apart";
}

TEST_F(Masks, RowsThatKeepNoKeyNeedNoOneNumberWhereTheyAreCleared) {
  const SymId condition = plane(0, Type::kI1);
  const auto extract_masked_again = [&](SymId score) {
    const auto found = match(op(Op::k_select, {condition, softmax_of(score), arena_.f32(0)}));
    EXPECT_TRUE(found.ok());
    Softmax softmax = *found;
    return extract_finite_masks(arena_, softmax, known(), true);
  };
  const auto added = [&](float number) {
    return op(Op::k_add, {score_, op(Op::k_select, {condition, arena_.f32(0), arena_.f32(number)})});
  };
  EXPECT_EQ(extract_masked_again(added(-1e9F)), FiniteMasks::kInAllRows);
  EXPECT_EQ(extract_masked_again(added(-1e4F)), FiniteMasks::kNone) << "scores reach it";
  EXPECT_EQ(extract_masked_again(op(Op::k_add, {added(-1e9F), plane(1)})), FiniteMasks::kNone) << "a bias may, too";
  Softmax unmasked;
  EXPECT_EQ(extract(added(-1e9F), unmasked), FiniteMasks::kNone) << "such a row is a softmax of its scores";
}

TEST_F(Masks, KeepsAKey) {
  EXPECT_TRUE(keeps_a_key(arena_, known(), {causal_}, kKeys));
  EXPECT_FALSE(keeps_a_key(arena_, known(), {op(Op::k_lt, {key_, row_})}, kKeys)) << "row 0 has none";
  EXPECT_FALSE(keeps_a_key(arena_, known(), {plane(0, Type::kI1)}, kKeys));
}

}  // namespace
}  // namespace flashlift::stablehlo
