#include "stablehlo/algebra/program.h"

#include "flashlift/program.h"
#include "stablehlo/algebra/formulas.h"

namespace flashlift::stablehlo {
namespace {

class ProgramOf : public Formulas {
 protected:
  std::vector<int64_t> sizes_ = sizes();
  Roles roles_ = [] {
    Roles roles;
    roles.query = {kRowAtom};
    return roles;
  }();
  std::vector<LeafInfo> leaves_ = {{Capture{.name = "bias", .dtype = DType::kF32, .shape = {kRows, kKeys}}}};
  ProgramEmitter emitter_{arena_, roles_, sizes_, leaves_};
};

TEST_F(ProgramOf, AtomsBecomeVariables) {
  const auto mask = emitter_.mask_mod({causal_});
  ASSERT_TRUE(mask.ok()) << mask.error().text;
  const std::string text = print(*mask);
  EXPECT_NE(text.find("le"), std::string::npos) << text;
}

TEST_F(ProgramOf, LoadsBecomeCaptures) {
  const auto score = emitter_.score_mod(op(Op::k_add, {score_, plane(0)}));
  ASSERT_TRUE(score.ok()) << score.error().text;
  EXPECT_NE(print(*score).find("bias"), std::string::npos) << print(*score);
  EXPECT_EQ(loads_of(arena_, op(Op::k_add, {op(Op::k_mul, {plane(0), plane(0)}), score_})),
            std::vector<SymId>{plane(0)});
}

TEST_F(ProgramOf, RefusesReductions) {
  const auto score = emitter_.score_mod(op(Op::k_sub, {score_, maximum(score_)}));
  ASSERT_FALSE(score.ok());
  EXPECT_EQ(score.error().reason, Reason::kReducesInProgram);
}

TEST_F(ProgramOf, OneScaleOfAllScoresIsTakenOut) {
  const SymId scaled = op(Op::k_mul, {score_, arena_.f32(0.25F)});
  SymId formula = op(Op::k_add, {op(Op::k_tanh, {scaled}), scaled});
  EXPECT_EQ(extract_scale(arena_, formula), 0.25F);
  EXPECT_EQ(formula, op(Op::k_add, {op(Op::k_tanh, {score_}), score_}));
  SymId mixed = op(Op::k_add, {op(Op::k_tanh, {score_}), scaled});
  const SymId before = mixed;
  EXPECT_EQ(extract_scale(arena_, mixed), 1);
  EXPECT_EQ(mixed, before);
}

}  // namespace
}  // namespace flashlift::stablehlo
