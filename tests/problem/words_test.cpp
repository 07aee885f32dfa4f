#include <gtest/gtest.h>

#include <set>

#include "flashlift/problem.h"
#include "problem/features.h"
#include "problem/word_texts.h"
#include "support/random_problem.h"

namespace flashlift::problem {
namespace {

const std::string kSizes = "attn b2 h3 sq5 skv16 d4 f16 ";

TEST(Words, EveryExampleIsRead) {
  for (const WordText& text : word_texts()) {
    EXPECT_FALSE(text.doc.empty()) << text.name;
    ASSERT_FALSE(text.examples.empty()) << text.name;
    if (text.group == std::string_view("sizes") || text.group == std::string_view("programs")) {
      continue;
    }
    for (const std::string& example : text.examples) {
      const auto p = parse_problem(kSizes + example);
      EXPECT_TRUE(p.ok()) << example << ": " << p.error().message;
    }
  }
}

// Each feature's program, aligned top left and bottom right, can be printed and read back, and reads the tensors that
// its row declares.
TEST(Words, EveryFeatureIsAProgramOverItsOwnTensors) {
  for (const WordText& text : word_texts()) {
    const bool is_mask = text.group == std::string_view("masks");
    if (!is_mask && text.group != std::string_view("scores")) {
      continue;
    }
    for (const std::string& example : text.examples) {
      const auto p = parse_problem(kSizes + example);
      ASSERT_TRUE(p.ok()) << example << ": " << p.error().message;
      EXPECT_TRUE(is_mask ? p->mask_mod.has_value() && !p->score_mod : p->score_mod.has_value() && !p->mask_mod)
          << example;
      EXPECT_EQ(p->captures.size(), text.captures.size()) << example;
      for (const Capture& capture : p->captures) {
        EXPECT_NE(feature_tensor(capture), nullptr) << example << " " << capture.name;
      }
    }
  }
}

// feature_tensor() describes only tensors that belong to a feature, and not others of the same name.
TEST(Words, TensorsOfOtherShapesAreNoFeatures) {
  EXPECT_NE(feature_tensor({"cu_seqlens_q", DType::kI32, {kSameSize}}), nullptr);
  EXPECT_EQ(feature_tensor({"cu_seqlens_q", DType::kF32, {kSameSize}}), nullptr);
  EXPECT_EQ(feature_tensor({"cu_seqlens_q", DType::kI32, {}}), nullptr);
}

TEST(Words, RandomProblemsHaveEveryFeature) {
  testing::Random random(7);
  std::set<std::string> tensors;
  for (int i = 0; i < 400; ++i) {
    for (const Capture& capture : testing::draw_problem(random).captures) {
      tensors.insert(feature_tensor(capture) != nullptr ? capture.name : "");
    }
  }
  for (const Feature& feature : features()) {
    EXPECT_GE(feature.drawn.once_in, 1) << feature.word.name;
    for (const FeatureTensor& tensor : feature.tensors) {
      EXPECT_TRUE(tensor.name == nullptr || tensors.contains(tensor.name)) << feature.word.name;
    }
  }
}

struct Slip {
  const char* text;
  const char* message;
};
class Slips : public ::testing::TestWithParam<Slip> {};

TEST_P(Slips, AreAnsweredWithTheWordThatWasMeant) {
  const auto p = parse_problem(kSizes + GetParam().text);
  ASSERT_FALSE(p.ok());
  EXPECT_NE(p.error().message.find(GetParam().message), std::string::npos) << p.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    All, Slips,
    ::testing::Values(Slip{"causall", "unknown word `causall` in a problem: did you mean `causal`?"},
                      Slip{"Causal", "did you mean `causal`?"}, Slip{"windows=3", "did you mean `window=3`?"},
                      Slip{"soft_cap=30", "did you mean `softcap=30`?"},
                      Slip{"key_length", "did you mean `key_lengths`?"}, Slip{"fp16", "did you mean `f16`?"},
                      Slip{"kv8", "did you mean `hkv8`, `skv8` or `dv8`?"},
                      Slip{"banana", "expected one of b<N>, h<N>, hq<N> hkv<N>, "},
                      Slip{"=5", "expected one of b<N>, "}));

TEST(Words, JsonHoldsNoCharacterToEscape) {
  for (const WordText& text : word_texts()) {
    for (const std::string& each : {text.doc, text.without, text.name}) {
      EXPECT_EQ(each.find_first_of("\"\\\n\t"), std::string::npos) << each;
    }
  }
}

}  // namespace
}  // namespace flashlift::problem
