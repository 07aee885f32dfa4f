#include "stablehlo/algebra/symbol.h"

#include "stablehlo/algebra/formulas.h"

namespace flashlift::stablehlo {
namespace {

using Symbol = Formulas;

TEST_F(Symbol, EqualFormulasAreOne) {
  EXPECT_EQ(op(Op::k_mul, {score_, arena_.f32(2)}), op(Op::k_mul, {score_, arena_.f32(2)}));
  EXPECT_NE(op(Op::k_mul, {score_, arena_.f32(2)}), op(Op::k_mul, {score_, arena_.f32(3)}));
  EXPECT_EQ(sum(plane(0)), sum(plane(0)));
  EXPECT_NE(sum(plane(0)), maximum(plane(0)));
}

// Code that reads a formula may add others at the same time.
TEST_F(Symbol, FormulasStayWhereTheyAre) {
  const SymId id = op(Op::k_mul, {score_, plane(0)});
  const Sym* const place = &arena_[id];
  for (int i = 0; i < 10000; ++i) {
    arena_.i32(i);
  }
  EXPECT_EQ(place, &arena_[id]);
  EXPECT_EQ(place->args, (std::vector<SymId>{score_, plane(0)}));
}

TEST_F(Symbol, ConstantsFold) {
  EXPECT_TRUE(arena_.is_f32(op(Op::k_add, {arena_.f32(2), arena_.f32(3)}), 5));
  EXPECT_EQ(op(Op::k_lt, {arena_.i32(2), arena_.i32(3)}), arena_.boolean(true));
  EXPECT_EQ(op(Op::k_select, {arena_.boolean(false), score_, plane(0)}), plane(0));
}

TEST_F(Symbol, ProductsOfConditionsAsNumbersAreOneCondition) {
  const auto number = [&](SymId condition, float otherwise) {
    return op(Op::k_select, {condition, arena_.f32(1), arena_.f32(otherwise)});
  };
  const SymId of_query = of_row(0, Type::kI1);
  const SymId of_key_too = of_key(1, Type::kI1);
  for (const Op how : {Op::k_mul, Op::k_min}) {
    EXPECT_EQ(op(how, {number(of_query, 0), number(of_key_too, 0)}), number(op(Op::k_and, {of_query, of_key_too}), 0));
    EXPECT_TRUE(arena_.is_op(op(how, {number(of_query, 0), number(of_key_too, 0.5F)}), how));
  }
}

TEST_F(Symbol, KnowsItsIndices) {
  EXPECT_TRUE(arena_.depends_on(plane(0), kKeyAtom));
  EXPECT_TRUE(arena_.depends_on(plane(0), kRowAtom));
  EXPECT_FALSE(arena_.depends_on(of_row(0), kKeyAtom));
  EXPECT_FALSE(arena_.depends_on(sum(plane(0)), kKeyAtom)) << "the sum runs over the keys";
  EXPECT_TRUE(arena_.depends_on(sum(plane(0)), kRowAtom));
}

TEST_F(Symbol, ReplacesAndSimplifiesAgain) {
  const SymId chosen = op(Op::k_select, {causal_, score_, arena_.f32(0)});
  EXPECT_EQ(arena_.replace(chosen, causal_, arena_.boolean(true)), score_);
  EXPECT_EQ(arena_.replace(plane(3), key_, arena_.i32(2)), arena_.load(3, Type::kF32, {row_, arena_.i32(2)}));
}

TEST_F(Symbol, TakesTermsApart) {
  const SymId all = op(Op::k_add, {op(Op::k_add, {plane(0), plane(1)}), score_});
  EXPECT_TRUE(any_term(arena_, all, {Op::k_add}, [&](SymId term) { return term == plane(1); }));
  EXPECT_FALSE(any_term(arena_, all, {Op::k_mul}, [&](SymId term) { return term == plane(1); }));
}

TEST_F(Symbol, AsksEachPartOnceAndNoMoreThanItHasTo) {
  SymId doubled = score_;
  for (int i = 0; i < 40; ++i) {
    doubled = op(Op::k_add, {doubled, doubled});
  }
  std::vector<SymId> asked;
  const auto ask = [&](SymId id, std::vector<SymId>& next) {
    asked.push_back(id);
    arena_.push_args(id, next);
    return id == plane(1);
  };
  EXPECT_FALSE(any_part({doubled}, ask));
  EXPECT_EQ(asked.size(), 41U);
  asked.clear();
  EXPECT_TRUE(any_part({doubled, plane(1), causal_}, ask));
  EXPECT_EQ(asked.front(), causal_) << "the last on the stack comes first";
  EXPECT_EQ(asked.back(), plane(1)) << "it ends where it found what is wanted";
}

}  // namespace
}  // namespace flashlift::stablehlo
