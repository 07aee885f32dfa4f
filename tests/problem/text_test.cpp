#include <gtest/gtest.h>

#include "flashlift/problem.h"

namespace flashlift {
namespace {

TEST(ProblemText, ReadsSizesAndDefaults) {
  const auto p = parse_problem("attn b2 hq32 hkv8 sq4096 skv1024 d128 bf16");
  ASSERT_TRUE(p.ok()) << p.error().message;
  EXPECT_EQ(p->batch, 2);
  EXPECT_EQ(p->q_heads, 32);
  EXPECT_EQ(p->kv_heads, 8);
  EXPECT_EQ(p->q_len, 4096);
  EXPECT_EQ(p->kv_len, 1024);
  EXPECT_EQ(p->head_dim, 128);
  EXPECT_EQ(p->value_dim, 128);
  EXPECT_EQ(p->dtype, DType::kBF16);
  EXPECT_EQ(p->out_dtype, DType::kBF16);
  EXPECT_FLOAT_EQ(p->scale, 0.088388348f);
  EXPECT_FALSE(p->score_mod || p->mask_mod);
}

TEST(ProblemText, NamedFeaturesBecomePrograms) {
  const auto p = parse_problem("attn h8 s64 d64 causal softcap=30 window=16,0");
  ASSERT_TRUE(p.ok()) << p.error().message;
  EXPECT_EQ(print_one_line(*p->score_mod),
            "score_mod() { %0 = div score, 30.0; %1 = tanh %0; %2 = mul %1, 30.0; return %2 }");
  EXPECT_NE(print_one_line(*p->mask_mod).find("le kv, q"), std::string::npos);
}

TEST(ProblemText, RoundTrips) {
  for (const char* text :
       {"attn h1 s1 d1", "attn h2 s9 d8 dropout=0.25 keep_mask row_max page_size=3",
        "attn b2 h2 s9 d8 segment_ids key_lengths causal=bottom_right mask=i32 bias=bf16 logits=f16 softcap=9",
        "attn h2 s9 d8 cu_seqlens causal window=3 prefix=2 alibi",
        "attn b2 hq4 hkv2 sq7 skv9 dqk96 dv64 f16 out=f32 d_out=inputs scale=0.25 lse sinks=2 empty_rows=nan",
        "attn h3 s100 d32 causal=bottom_right window=5 alibi softcap=2.5 unnormalized",
        "attn h12 s100 d32 alibi causal prefix=10 documents=3",
        "attn h2 s8 d8 score_mod(t: f32[8]) { %0 = load t[kv]; %1 = add score, %0; return %1 } "
        "mask_mod(t: f32[8], m: bool[?,8]) { %0 = load m[b, kv]; return %0 }"}) {
    const auto p = parse_problem(text);
    ASSERT_TRUE(p.ok()) << text << ": " << p.error().message;
    const std::string printed = print(*p);
    const auto again = parse_problem(printed);
    ASSERT_TRUE(again.ok()) << printed << ": " << again.error().message;
    EXPECT_EQ(print(*again), printed);
  }
}

struct BadText {
  const char* text;
  const char* message;
};
class ProblemTextErrors : public testing::TestWithParam<BadText> {};

TEST_P(ProblemTextErrors, SayWhatWasExpected) {
  const auto p = parse_problem(GetParam().text);
  ASSERT_FALSE(p.ok()) << GetParam().text;
  EXPECT_NE(p.error().message.find(GetParam().message), std::string::npos) << p.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    All, ProblemTextErrors,
    testing::Values(BadText{"", "starts with `attn`"}, BadText{"h8 s8 d8", "got `h8`"},
                    BadText{"attn", "give either h<N>"}, BadText{"attn hq4 s8 d8", "give both hq and hkv"},
                    BadText{"attn h4 hq4 hkv4 s8 d8", "give either h<N>"},
                    BadText{"attn hq4 hkv3 s8 d8", "q_heads must be a multiple of kv_heads, got 4 and 3"},
                    BadText{"attn h4 s8 d300", "head_dim must be 1 to 256, got 300"},
                    BadText{"attn h4 s8 d8 score_mod() { return score } score_mod() { return score }",
                            "the problem has two score_mods; write them as one"},
                    BadText{"attn h4 s8 d8 f64", "expected f32, bf16 or f16"},
                    BadText{"attn h4 s8 d8 causall", "unknown word `causall`"},
                    BadText{"attn h4 s8 d8 x7", "unknown word `x7`"}, BadText{"attn h4 h4 s8 d8", "`h` is given twice"},
                    BadText{"attn h4 s-8 d8", "`s` expects an integer, as in `s8`, got `-8`"},
                    BadText{"attn h4 skv8x d8", "`skv` expects an integer, as in `skv8`, got `8x`"},
                    BadText{"attn h4 s1k d8", "`s` expects an integer, as in `s8`, got `1k`"},
                    BadText{"attn h4 s=8 d8", "`s` expects an integer, as in `s8`, got `=8`"},
                    BadText{"attn h4 s8 d", "`d` expects an integer, as in `d8`, got ``"},
                    BadText{"attn h4 s8 d8 d_outt=inputs", "did you mean `d_out=inputs`?"},
                    BadText{"attn h4 s99999999999999999999 d8", "`s` expects an integer"},
                    BadText{"attn h4 s8 d8 softcap=0", "`softcap` expects a positive number of 1e-45"},
                    BadText{"attn h4 s8 d8 scale=1e-50",
                            "`scale` expects 0 or a number of 1e-45 to 3.4e38 in size, the range of f32, got `1e-50`"},
                    BadText{"attn h4 s8 d8 window=-1", "`window` expects"},
                    BadText{"attn h4 s8 d8 documents=0", "`documents` expects an integer from 1"},
                    BadText{"attn h4 s8 d8 cu_seqlens key_lengths", "let cu_seqlens_kv name the keys that count"},
                    BadText{"attn h4 s8 d8 empty_rows=maybe", "zero, uniform or nan"},
                    BadText{"attn h4 s8 d8 score_mod() { return q }", "a score_mod returns f32"},
                    BadText{"attn h4 s8 d8 score_mod() { return score", "no closing"},
                    BadText{"attn h0 s8 d8 alibi", "q_heads must be 1 to"},
                    BadText{"attn h4 s8 d8 score_mod(t: f32[1]) { return score } mask_mod(t: f32[2]) { return true }",
                            "declare the captured tensor `t` differently"}));

}  // namespace
}  // namespace flashlift
