#include "support/spelling.h"

#include <gtest/gtest.h>

namespace flashlift {
namespace {

using Words = std::vector<std::string_view>;

TEST(Spelling, FindsWhatWasMeant) {
  const Words known = {"causal", "window", "softcap", "hkv", "skv", "h"};
  EXPECT_EQ(similar_words("causall", known), Words{"causal"});
  EXPECT_EQ(similar_words("cuasal", known), Words{"causal"});
  EXPECT_EQ(similar_words("Causal", known), Words{"causal"});
  EXPECT_EQ(similar_words("windows", known), Words{"window"});
  EXPECT_EQ(similar_words("soft_cap", known), Words{"softcap"});
  EXPECT_EQ(similar_words("kv", known), (Words{"hkv", "skv"}));
}

TEST(Spelling, FindsNothingForOtherWords) {
  const Words known = {"causal", "window", "h", "b"};
  EXPECT_TRUE(similar_words("", known).empty());
  EXPECT_TRUE(similar_words("x", known).empty());
  EXPECT_TRUE(similar_words("banana", known).empty());
  EXPECT_TRUE(similar_words(std::string(100000, 'a'), known).empty());
}

TEST(Spelling, SaysWhatWasMeant) {
  EXPECT_EQ(did_you_mean({}), "");
  EXPECT_EQ(did_you_mean({"causal"}), "did you mean `causal`?");
  EXPECT_EQ(did_you_mean({"hkv", "skv", "h"}), "did you mean `hkv`, `skv` or `h`?");
}

}  // namespace
}  // namespace flashlift
