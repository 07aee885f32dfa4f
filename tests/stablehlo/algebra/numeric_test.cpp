#include "stablehlo/algebra/numeric.h"

#include <gtest/gtest.h>

#include <cmath>

namespace flashlift::stablehlo {
namespace {

constexpr int kRowAtom = 1;
constexpr int64_t kKeys = 7;

class Numeric : public testing::Test {
 protected:
  NumericRow row(int64_t number = 0, const Draw& draw = {}) {
    std::vector<int64_t> sizes(kMaxAtoms, 1);
    sizes[kKeyAtom] = kKeys;
    sizes[kRowAtom] = 5;
    std::vector<int64_t> atoms(kMaxAtoms, 0);
    atoms[kRowAtom] = number;
    return {arena_, sizes, atoms, draw};
  }
  SymId over_keys(ReduceKind kind, SymId body) {
    return arena_.reduce(kind, {{.body = body, .size = kKeys, .atom = kKeyAtom}});
  }
  SymId op(Op op, std::vector<SymId> args) { return arena_.op(op, std::move(args)); }
  SymId load(int64_t leaf, Type type) {
    return arena_.load(leaf, type, {arena_.atom(kRowAtom), arena_.atom(kKeyAtom)});
  }

  SymArena arena_;
  SymId score_ = arena_.score(atom_bit(kKeyAtom) | atom_bit(kRowAtom));
};

TEST_F(Numeric, ASoftmaxSumsToOne) {
  const SymId e = op(Op::k_exp, {score_});
  const SymId p = op(Op::k_div, {e, over_keys(ReduceKind::kAdd, e)});
  NumericRow numbers = row();
  double sum = 0;
  for (size_t key = 0; key < kKeys; ++key) {
    sum += numbers.value(p, key);
  }
  EXPECT_NEAR(sum, 1, 1e-14);
  const double before = numbers.value(p, 3);
  EXPECT_NEAR(before, std::exp(numbers.value(score_, 3)) / numbers.value(over_keys(ReduceKind::kAdd, e), 0), 1e-14);
}

TEST_F(Numeric, DerivativesByTheShift) {
  const SymId x = op(Op::k_add, {score_, arena_.load(kShift, Type::kF32, {})});
  NumericRow numbers = row();
  for (size_t key = 0; key < kKeys; ++key) {
    const double score = numbers.value(score_, key);
    EXPECT_EQ(numbers.value(x, key), score);
    const auto of = [&](SymId id) { return numbers.derivative(id, key); };
    EXPECT_EQ(of(score_), 0);
    EXPECT_EQ(of(op(Op::k_add, {x, arena_.f32(-3e38F)})), 1);  // however little of it is left
    EXPECT_NEAR(of(op(Op::k_pow, {x, arena_.f32(3)})), 3 * score * score, 1e-12);
    EXPECT_NEAR(of(op(Op::k_mul, {x, x})), 2 * score, 1e-12);
    EXPECT_NEAR(of(op(Op::k_div, {score_, x})), -1 / score, 1e-12);
    EXPECT_NEAR(of(op(Op::k_tanh, {x})), 1 - std::pow(std::tanh(score), 2), 1e-12);
    EXPECT_NEAR(of(op(Op::k_sigmoid, {x})), 1 / (2 + std::exp(score) + std::exp(-score)), 1e-12);
    EXPECT_EQ(of(op(Op::k_max, {x, arena_.f32(0)})), score > 0 ? 1 : 0);
    EXPECT_EQ(of(op(Op::k_abs, {x})), score > 0 ? 1 : -1);
    EXPECT_EQ(of(op(Op::k_floor, {x})), 0);
    const SymId above = op(Op::k_gt, {score_, arena_.f32(0)});
    EXPECT_EQ(of(op(Op::k_select, {above, x, arena_.f32(-INFINITY)})), score > 0 ? 1 : 0);
    EXPECT_TRUE(std::isnan(of(over_keys(ReduceKind::kMaximum, x))));
  }
}

TEST_F(Numeric, ADrawIsTheSameEachTimeAndAnotherInEachRow) {
  const SymId bias = load(2, Type::kF32);
  NumericRow first = row(1);
  NumericRow again = row(1);
  NumericRow other = row(2);
  NumericRow drawn = row(1, {.seed = 9});
  for (const SymId id : {score_, bias}) {
    EXPECT_EQ(first.value(id, 4), again.value(id, 4));
    EXPECT_NE(first.value(id, 4), other.value(id, 4));
    EXPECT_NE(first.value(id, 4), drawn.value(id, 4));
    EXPECT_NE(first.value(id, 4), first.value(id, 5));
  }
}

TEST_F(Numeric, TheGradientHasARangeOfItsOwn) {
  const SymId gradient = load(3, Type::kF32);
  NumericRow numbers = row(0, {.gradient = 3, .gradient_range = 1e6});
  double largest = 0;
  for (size_t key = 0; key < kKeys; ++key) {
    largest = std::max(largest, std::abs(numbers.value(gradient, key)));
  }
  EXPECT_GT(largest, 1e4);
  EXPECT_LE(largest, 1e6);
}

TEST_F(Numeric, ReducesPiecesOfDifferentKinds) {
  const SymId sinks = arena_.load(0, Type::kF32, {arena_.atom(kFirstBound)});
  const SymId all = arena_.reduce(ReduceKind::kAdd, {{.body = score_, .size = kKeys, .atom = kKeyAtom},
                                                     {.body = sinks, .size = 3, .atom = kFirstBound},
                                                     {.body = arena_.f32(2), .size = 1, .atom = -1}});
  NumericRow numbers = row();
  double expected = 2;
  for (size_t key = 0; key < kKeys; ++key) {
    expected += numbers.value(score_, key);
  }
  for (int64_t i = 0; i < 3; ++i) {
    expected += numbers.value(arena_.load(0, Type::kF32, {arena_.i32(i)}), 0);
  }
  EXPECT_NEAR(numbers.value(all, 0), expected, 1e-12);
  double largest = -INFINITY;
  for (size_t key = 0; key < kKeys; ++key) {
    largest = std::max(largest, numbers.value(score_, key));
  }
  EXPECT_EQ(numbers.value(over_keys(ReduceKind::kMaximum, score_), 0), largest);
}

TEST_F(Numeric, OnlyALogSumExpOrASinkIsComparedWithInfinity) {
  const auto of_row = [&](int64_t leaf) { return arena_.load(leaf, Type::kF32, {arena_.atom(kRowAtom)}); };
  const SymId sink = of_row(0);
  const SymId bias = of_row(1);
  const SymId log = op(Op::k_log, {over_keys(ReduceKind::kAdd, op(Op::k_exp, {op(Op::k_add, {score_, bias})}))});
  const SymId known = op(Op::k_sub, {op(Op::k_sub, {score_, log}), sink});
  const auto replaces = [&](SymId x, float by = INFINITY) {
    const SymId is_infinite = op(Op::k_eq, {x, arena_.f32(by)});
    return reads_within(arena_, op(Op::k_select, {is_infinite, arena_.f32(0), x}), {known}, {sink});
  };
  EXPECT_TRUE(replaces(log));
  EXPECT_TRUE(replaces(sink));
  EXPECT_FALSE(replaces(bias)) << "the score may clip it";
  EXPECT_FALSE(replaces(score_));
  EXPECT_FALSE(replaces(of_row(2)));
  EXPECT_FALSE(replaces(sink, 5));
  EXPECT_FALSE(replaces(log, -INFINITY)) << "a row without keys";
}

TEST_F(Numeric, ReadsWithin) {
  const SymId mask = load(0, Type::kI1);
  const SymId known = op(Op::k_select, {mask, op(Op::k_tanh, {score_}), arena_.f32(-1e30F)});
  const auto within = [&](SymId id) { return reads_within(arena_, id, {known}); };
  const SymId square = op(Op::k_mul, {score_, score_});
  EXPECT_TRUE(within(square));
  EXPECT_TRUE(within(op(Op::k_select, {mask, square, arena_.f32(0)})));
  EXPECT_TRUE(within(op(Op::k_select, {op(Op::k_not, {mask}), arena_.f32(0), square})));
  const SymId maximum = over_keys(ReduceKind::kMaximum, known);
  EXPECT_TRUE(reads_within(arena_, op(Op::k_eq, {known, maximum}), {known, maximum}));
  EXPECT_TRUE(reads_within(arena_, op(Op::k_ne, {arena_.f32(-INFINITY), maximum}), {known, maximum}));
  EXPECT_FALSE(reads_within(arena_, op(Op::k_eq, {arena_.f32(0), maximum}), {known, maximum}));
  EXPECT_FALSE(reads_within(arena_, op(Op::k_eq, {score_, maximum}), {known, maximum}));
  // Branches that the known formula has itself: |x| at 0, max(x, y) where x = y.
  const SymId clipped = op(Op::k_max, {op(Op::k_abs, {score_}), arena_.f32(0.5F)});
  for (const auto& [x, y] : {std::pair(score_, arena_.f32(0)), {op(Op::k_abs, {score_}), arena_.f32(0.5F)}}) {
    const SymId branch = op(Op::k_select, {op(Op::k_lt, {x, y}), square, arena_.f32(0)});
    EXPECT_TRUE(reads_within(arena_, branch, {clipped}));
    EXPECT_FALSE(within(branch));
  }
  EXPECT_FALSE(
      reads_within(arena_, op(Op::k_select, {op(Op::k_lt, {score_, arena_.f32(0.5F)}), square, score_}), {clipped}));
  // A sum of exponentials is positive in every row.
  const SymId sum = over_keys(ReduceKind::kAdd, op(Op::k_exp, {score_}));
  EXPECT_TRUE(within(op(Op::k_select, {op(Op::k_lt, {arena_.f32(0), sum}), square, score_})));
  EXPECT_FALSE(within(op(Op::k_select, {op(Op::k_lt, {arena_.f32(1), sum}), square, score_})));
  EXPECT_FALSE(
      within(op(Op::k_select, {op(Op::k_lt, {arena_.f32(0), over_keys(ReduceKind::kAdd, score_)}), square, score_})));
  EXPECT_FALSE(within(op(Op::k_select, {load(1, Type::kI1), square, arena_.f32(0)})));
  EXPECT_FALSE(within(op(Op::k_mul, {square, load(2, Type::kF32)})));
  EXPECT_FALSE(within(op(Op::k_max, {square, arena_.f32(0)})));
  EXPECT_FALSE(within(op(Op::k_select, {op(Op::k_lt, {score_, arena_.f32(1e9F)}), square, arena_.f32(0)})));
  EXPECT_FALSE(within(op(Op::k_select, {op(Op::k_lt, {arena_.atom(kKeyAtom), arena_.i32(5)}), square, arena_.f32(0)})));
  EXPECT_FALSE(within(over_keys(ReduceKind::kMinimum, square)));
  // A step that only a few rows or keys show.
  for (const Op steps : {Op::k_floor_div, Op::k_div, Op::k_mod, Op::k_shl}) {
    const SymId step = op(steps, {arena_.atom(kRowAtom), arena_.i32(1000)});
    EXPECT_FALSE(within(op(Op::k_add, {square, arena_.convert(step, Type::kF32)}))) << static_cast<int>(steps);
  }
  EXPECT_TRUE(within(op(Op::k_add, {square, arena_.convert(arena_.atom(kRowAtom), Type::kF32)})));
}

TEST_F(Numeric, LargestThreshold) {
  const SymId clipped = op(Op::k_min, {op(Op::k_max, {score_, arena_.f32(-20)}), arena_.f32(3)});
  const SymId masked = op(Op::k_max, {score_, arena_.f32(-1e30F)});
  EXPECT_FALSE(
      largest_threshold(arena_, {score_, op(Op::k_max, {over_keys(ReduceKind::kMaximum, score_), arena_.f32(7)})}));
  EXPECT_EQ(largest_threshold(arena_, {masked, score_}), 0);
  EXPECT_EQ(largest_threshold(arena_, {op(Op::k_abs, {score_})}), 0);
  EXPECT_EQ(largest_threshold(arena_, {masked, op(Op::k_exp, {clipped})}), 20);
}

}  // namespace
}  // namespace flashlift::stablehlo
