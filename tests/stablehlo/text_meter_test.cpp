#include "stablehlo/reader/text_meter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace flashlift::stablehlo {
namespace {

std::string refusal(const std::string& text) {
  const Status status = measure_text(text, "m");
  return status.ok() ? "" : status.error().message;
}

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

// `count` aliases after the first; each contains the one before it twice.
std::string doubling(const std::string& sigil, const std::string& first, const std::string& step, int count) {
  std::string text = fmt::format("{}0 = {}\n", sigil, first);
  for (int i = 0; i < count; ++i) {
    text += fmt::format("{}{} = {}\n", sigil, i + 1, fmt::format(fmt::runtime(step), i));
  }
  return text;
}

TEST(TextMeter, AddsUpWhatAliasesBecome) {
  const std::string attributes = doubling("#a", "[1, 1]", "[#a{0}, #a{0}]", 30);
  EXPECT_NE(refusal(attributes).find("m:20:"), std::string::npos) << refusal(attributes);
  EXPECT_NE(refusal(attributes).find("once the aliases in it are written out"), std::string::npos);
  EXPECT_NE(refusal(doubling("!t", "tuple<f32, f32>", "tuple<!t{0}, !t{0}>", 30)), "");
  // The value may continue on the next line.
  EXPECT_NE(refusal(doubling("!t", "f32", "(\n!t{0}) ->\n // and\n !t{0}", 40)), "");
  EXPECT_NE(refusal(doubling("#a", "1 : i32", "dense<1> // :\n :\n tensor<2xf32, [#a{0}, #a{0}]>", 40)), "");
  EXPECT_EQ(refusal(doubling("#a", "[1, 1]", "[#a{0}, #a{0}]", 15)), "");
}

TEST(TextMeter, AddsUpTheUsesOfAliases) {
  const std::string large = doubling("#a", "[1, 1]", "[#a{0}, #a{0}]", 18);
  EXPECT_EQ(refusal(large + "\"op\"() {a = #a18} : () -> ()"), "");
  EXPECT_NE(refusal(large + "\"op\"() {a = [" + repeated("#a18, ", 200) + "]} : () -> ()"), "");
}

TEST(TextMeter, TakesLocationsThatShareTheirCallers) {
  const std::string locations = doubling("#loc", "loc(\"f\":1:1)", "loc(callsite(#loc{0} at #loc{0}))", 200);
  EXPECT_EQ(refusal(locations + "\"op\"() : () -> () loc(#loc200)"), "");
  EXPECT_NE(refusal(locations + "\"op\"() {a = #loc200} : () -> ()"), "");
  EXPECT_NE(refusal(doubling("#loc", "loc(\"f\":1:1)", "loc(\"a\"(#loc{0}))", 100'000)).find("nested more than 1000"),
            std::string::npos);
}

TEST(TextMeter, EndsADefinitionWhereTheNextStatementBegins) {
  // If the text after `#l` belonged to the alias, each use would count the whole module.
  const std::string body = repeated("  %1 = stablehlo.add %0, %0 {a = #l} : tensor<2xf32>\n", 20'000);
  EXPECT_EQ(refusal("#l = [1]\nmodule @m {\n" + body + "}\n"), "");
  EXPECT_EQ(refusal("#l = dense<1> : tensor<2xi32>\n\"builtin.module\"() ({\n" + body + "}) : () -> ()\n"), "");
  EXPECT_EQ(refusal("!t = i32\n#l = @a::@b\nfunc.func @f() {\n" + body + "}\n"), "");
}

TEST(TextMeter, LimitsAffineMaps) {
  EXPECT_EQ(refusal("#m = affine_map<(d0, d1) -> (d0 * 8 + d1 floordiv 2, -d1)>"), "");
  EXPECT_EQ(refusal(repeated("#m = affine_map<(d0) -> (d0)>\n", 1000)), "");
  EXPECT_NE(refusal("#m = affine_map<(d0) -> (d0" + repeated(" + d0", 100'000) + ")>").find("m:1:"), std::string::npos);
  EXPECT_NE(refusal("memref<4xf32, affine_map < (d0" + repeated(", d0", 100'000) + ") -> (d0)>>"), "");
  EXPECT_NE(refusal("#s = affine_set<(d0) : (d0" + repeated(" + d0", 100'000) + " >= 0)>"), "");
}

TEST(TextMeter, LimitsNumbers) {
  EXPECT_NE(refusal("{a = " + std::string(1'000'000, '9') + " : i32}").find("a number of more"), std::string::npos);
  EXPECT_NE(refusal("{a = 1." + std::string(1'000'000, '9') + "}"), "");
  EXPECT_NE(refusal("{a = 1.0e" + std::string(1'000'000, '9') + "}"), "");
  EXPECT_NE(refusal("{a = 0x" + std::string(1'000'000, 'F') + "}"), "");
  EXPECT_EQ(refusal("dense<\"0x" + std::string(1'000'000, 'F') + "\">"), "");
  EXPECT_EQ(refusal("%" + std::string(1'000'000, '9')), "");
}

TEST(TextMeter, LimitsTheBitsOfIntegers) {
  for (const char* text : {"i16777215", "0 : i16777215", "tensor<4xi16777215>", "tensor<4x0x4xsi129>",
                           "tensor<?xui9999>", "tensor<i99999999999999999999>", "vector<2x2xi5000>"}) {
    EXPECT_NE(refusal(text).find("bits"), std::string::npos) << text;
  }
  for (const char* text :
       {"i64", "tensor<4xui64>", "i128", "%i99999", "@i99999", "#i99999", "{i99999 = 1}", "maxi5000", "foo.i5000",
        "\"i5000\"", "// i5000", "tensor<5000x5000xi8>", "!quant.uniform<i8:f32, 2.0>"}) {
    EXPECT_EQ(refusal(text), "") << text;
  }
}

TEST(TextMeter, LimitsRunsOfMinusSigns) {
  EXPECT_NE(refusal("affine_map<(d0) -> (" + repeated("- ", 1000) + "d0)>"), "");
  EXPECT_EQ(refusal("[" + repeated("-1, ", 1000) + "]"), "");
  EXPECT_EQ(refusal(repeated("() -> ", 10'000) + "()"), "");
}

}  // namespace
}  // namespace flashlift::stablehlo
