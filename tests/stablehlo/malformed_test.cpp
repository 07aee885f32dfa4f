// Text that is not a valid module gives an error with a position in the text, and nothing else.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stablehlo/read.h"
#include "stablehlo/reader/normalize.h"

namespace flashlift::stablehlo {
namespace {

struct Malformed {
  const char* body;     // of a function (%x: tensor<4x6xf32>, %i: tensor<i32>), "return" behind it
  const char* message;  // a part of the error
};

class MalformedText : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedText, GivesAnErrorWithItsPlace) {
  const std::string text =
      "func.func @main(%x: tensor<4x6xf32>, %i: tensor<i32>) {\n" + std::string(GetParam().body) + "\n  return\n}\n";
  const Result<Module> module = Module::parse(text, "bad.mlir");
  ASSERT_FALSE(module.ok());
  EXPECT_EQ(module.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_TRUE(module.error().message.starts_with("bad.mlir:")) << module.error().message;
  EXPECT_NE(module.error().message.find(GetParam().message), std::string::npos) << module.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Syntax, MalformedText,
    testing::Values(
        Malformed{"%0 = stablehlo.add %x, %x : tensor<4x6xf32", "expected"},
        Malformed{"%0 = stablehlo.add %x %x : tensor<4x6xf32>", "expected ','"},
        Malformed{"%0 = stablehlo.add %x, %y : tensor<4x6xf32>", "use of undeclared SSA value"},
        Malformed{"%0 = stablehlo.add %x, %x : (tensor<4x6xf32>) -> tensor<4x6xf32>",
                  "number of operands and types do not match"},
        Malformed{"%0:2 = stablehlo.add %x, %x : tensor<4x6xf32>", "result"},
        Malformed{"%0 = stablehlo.nonsense %x : tensor<4x6xf32>", "has no pretty form"},
        Malformed{"%0:2 = mhlo.topk(%x, k = 2) : tensor<4x6xf32> -> (tensor<4x2xf32>, tensor<4x2xi32>)",
                  "write it in MLIR's generic form, \"mhlo.topk\"(...)"},
        Malformed{"%0 = mhlo.reduce_precision %x, format = e5m2 : tensor<4x6xf32>", "write it in MLIR's generic form"},
        Malformed{"%0 = mhlo.select %x, %x, %x : tensor<4x6xi1>, tensor<4x6xf32>", "expected one type"},
        Malformed{"%0 = mhlo.add %x, %x : tensor<4x6xbf16>", "expects different type"},
        Malformed{"%0 = stablehlo.gather %x : tensor<4x6xf32>", "generic form"},
        Malformed{"%0 = foo.bar %x : tensor<4x6xf32>", "foo"},
        Malformed{"%0 = stablehlo.slice %x [0:4] : (tensor<4x6xf32>) -> tensor<4x6xf32>", "bounds"},
        Malformed{"%0 = stablehlo.slice %x [0:4, 1] : (tensor<4x6xf32>) -> tensor<4x6xf32>", "expected ':'"},
        Malformed{"%0 = stablehlo.reduce(%x init: %x) applies stablehlo.divide across dimensions = [1] : "
                  "(tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>",
                  "commutative"},
        Malformed{"%0 = stablehlo.constant dense<1> : i32", "must be a shaped type"},
        Malformed{"%0 = stablehlo.constant 3 : i32", "expected the elements of a tensor"},
        Malformed{"%0 = stablehlo.constant dense<[1, 2]> : tensor<3xi32>", "does not match type"},
        Malformed{"%0 = stablehlo.constant dense<\"0x0102\"> : tensor<300xi1>", "elements hex data size is invalid"},
        Malformed{"%0 = stablehlo.reduce_precision %x, format = e8x10 : tensor<4x6xf32>", "such as e8m10"},
        Malformed{"%0 = stablehlo.complex %x, %x : tensor<4x6xf32>", "complex"},
        Malformed{"\"sdy.x\"() {a = #sdy.sharding<@m, [{\"a\"}, // {}]>} : () -> ()\n]>} : () -> ()",
                  "a comment within this attribute or type holds a bracket"},
        Malformed{"%0 = stablehlo.get_tuple_element %x[99999999999] : (tensor<4x6xf32>) -> tensor<f32>", "32-bit"}));

INSTANTIATE_TEST_SUITE_P(
    Meaning, MalformedText,
    testing::Values(
        Malformed{R"(%0 = "stablehlo.add"(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>)", "expected 2 operands, got 1"},
        Malformed{R"(%0 = "stablehlo.add"(%x, %i) : (tensor<4x6xf32>, tensor<i32>) -> tensor<4x6xf32>)", "one shape"},
        Malformed{R"("stablehlo.negate"(%x) : (tensor<4x6xf32>) -> ())", "expected one result"},
        Malformed{R"(%0 = "stablehlo.negate"(%x) : (tensor<4x6xf32>) -> f32)", "ranked tensor"},
        Malformed{R"("sdy.sharding_constraint"(%x) : (tensor<4x6xf32>) -> ())",
                  "expected one result of its operand's type, tensor<4x6xf32>"},
        Malformed{R"(%0 = "sdy.reshard"(%x) : (tensor<4x6xf32>) -> tensor<6x4xf32>)",
                  "expected one result of its operand's type, tensor<4x6xf32>"},
        Malformed{R"(%0 = "stablehlo.transpose"(%x) : (tensor<4x6xf32>) -> tensor<6x4xf32>)", "'permutation'"},
        Malformed{
            R"(%0 = "stablehlo.transpose"(%x) <{permutation = array<i64: 1, 1>}> : (tensor<4x6xf32>) -> tensor<6x6xf32>)",
            "does not lead"},
        Malformed{R"(%0 = "stablehlo.transpose"(%x) <{permutation = 3 : i64}> : (tensor<4x6xf32>) -> tensor<6x4xf32>)",
                  "'permutation'"},
        Malformed{R"(%0 = "stablehlo.transpose"(%x) <"text"> : (tensor<4x6xf32>) -> tensor<6x4xf32>)", ""},
        Malformed{"%0 = stablehlo.broadcast_in_dim %x, dims = [0] : (tensor<4x6xf32>) -> tensor<4x6xf32>",
                  "one dimension"},
        Malformed{"%0 = stablehlo.broadcast_in_dim %x, dims = [1, 0] : (tensor<4x6xf32>) -> tensor<4x6xf32>",
                  "does not fit"},
        Malformed{"%0 = stablehlo.broadcast_in_dim %x, dims = [-1, 7] : (tensor<4x6xf32>) -> tensor<4x6xf32>",
                  "one dimension"},
        Malformed{"%0 = stablehlo.reshape %x : (tensor<4x6xf32>) -> tensor<25xf32>", "as many elements"},
        Malformed{"%0 = stablehlo.iota dim = 2 : tensor<4x6xi32>", "iota_dimension"},
        Malformed{"%0 = stablehlo.concatenate %x, %x, dim = 1 : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x11xf32>",
                  "12 elements"},
        Malformed{"%0 = stablehlo.pad %x, %x, low = [0, 0], high = [0, 0], interior = [0, 0] : (tensor<4x6xf32>, "
                  "tensor<4x6xf32>) -> tensor<4x6xf32>",
                  "scalar padding value"},
        Malformed{"%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [2] : (tensor<4x6xf32>, "
                  "tensor<4x6xf32>) -> tensor<4x4xf32>",
                  "do not fit"},
        Malformed{"%0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<4x6xf32>, "
                  "tensor<4x6xf32>) -> tensor<4x5xf32>",
                  "[4, 4]"},
        Malformed{
            R"(%0 = "stablehlo.dot_general"(%x, %x) <{dot_dimension_numbers = #stablehlo.dot<nonsense>}> : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>)",
            "dot_dimension_numbers"},
        Malformed{
            R"(%0 = "stablehlo.compare"(%x, %x) <{comparison_direction = #stablehlo<comparison_direction XX>}> : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xi1>)",
            "EQ, NE"},
        Malformed{
            R"(%0 = "stablehlo.reduce"(%x, %i) <{dimensions = array<i64: 1>}> ({}) : (tensor<4x6xf32>, tensor<i32>) -> tensor<4xf32>)",
            "region 0"},
        Malformed{R"(%0 = "stablehlo.while"(%x) ({}, {}) : (tensor<4x6xf32>) -> tensor<4x6xf32>)", "region 0"},
        Malformed{R"(%0 = "stablehlo.composite"(%x) <{name = "x"}> : (tensor<4x6xf32>) -> tensor<4x6xf32>)",
                  "'decomposition'"},
        Malformed{
            R"(%0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [9]>, slice_sizes = array<i64: 1, 1>}> : (tensor<4x6xf32>, tensor<i32>) -> tensor<f32>)",
            "gather"}));

TEST(Malformed, UseBeforeDefinitionInsideARegion) {
  const Result<Module> module = Module::parse(R"(
func.func @main(%x: tensor<2xf32>, %c: tensor<i32>) -> tensor<2xf32> {
  %0 = "stablehlo.case"(%c) ({
    %1 = stablehlo.add %2, %x : tensor<2xf32>
    %2 = stablehlo.add %1, %x : tensor<2xf32>
    stablehlo.return %2 : tensor<2xf32>
  }) : (tensor<i32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
})",
                                              "bad.mlir");
  ASSERT_FALSE(module.ok());
  EXPECT_NE(module.error().message.find("bad.mlir:4:"), std::string::npos) << module.error().message;
}

// A chain of aliases that nests without brackets, and whose meaning doubles in size at each alias while the text stays
// short.
std::string with_aliases(const char* first, const char* step, int count, const char* use) {
  std::string text = fmt::format(fmt::runtime("#a0 = " + std::string(first) + "\n"));
  for (int i = 0; i < count; ++i) {
    text += fmt::format(fmt::runtime("#a{1} = " + std::string(step) + "\n"), i, i + 1);
  }
  return text + "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n  %0 = stablehlo.negate %x " +
         fmt::format(fmt::runtime(use), count) + "\n  return %0 : tensor<2xf32>\n}\n";
}

TEST(Malformed, AliasesThatNestTooDeepOrGrowTooLarge) {
  for (const std::string& text :
       {with_aliases("[1]", "[#a{0}]", 100'000, "{{a = #a{}}} : tensor<2xf32>"),
        with_aliases("loc(\"f\":1:1)", "loc(\"a\"(#a{0}))", 100'000, ": tensor<2xf32> loc(#a{})"),
        with_aliases("[1, 1]", "[#a{0}, #a{0}]", 60, "{{a = #a{}}} : tensor<2xf32>")}) {
    const Result<Module> module = Module::parse(text, "bad.mlir");
    ASSERT_FALSE(module.ok());
    EXPECT_EQ(module.error().kind, ErrorKind::kUnsupported);
  }
  EXPECT_TRUE(Module::parse(with_aliases("[1]", "[#a{0}]", 500, "{{a = #a{}}} : tensor<2xf32>")).ok());
}

// Texts that must be refused quickly, and a part of each message.
TEST(Malformed, SmallTextsOfLargeThings) {
  const auto of_body = [](const std::string& body) {
    return "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n" + body + "  return %x : tensor<2xf32>\n}\n";
  };
  std::string ones;
  for (int i = 0; i < 100'000; ++i) {
    ones += "1x";
  }
  const std::string doubling = with_aliases("[1, 1]", "[#a{0}, #a{0}]", 18, "{{a = #a{}}} : tensor<2xf32>");
  const std::pair<std::string, const char*> cases[] = {
      {of_body("  %0 = stablehlo.iota dim = 0 : tensor<" + ones + "f32>\n"), "more than 64 dimensions"},
      {"func.func private @f(tensor<" + ones + "f32>)", "more than 64 dimensions"},
      {of_body("  %0 = stablehlo.constant dense<0> : tensor<9999999x9999999x9999999xi32>\n"), "more than 2^63 - 1"},
      {of_body("  %0 = stablehlo.iota dim = 0 : tensor<9999999x9999999x0x9999999xi32>\n"), "more than 2^63 - 1"},
      // A verifier's error that would print the operation with its aliases expanded.
      {doubling + R"("func.func"() ({ "func.return"() : () -> () })
          {sym_name = "f", function_type = (i32) -> (), a = [#a18, #a18, #a18]} : () -> ())",
       "parts once its aliases"},
  };
  for (const auto& [text, message] : cases) {
    const Result<Module> module = Module::parse(text, "bad.mlir");
    ASSERT_FALSE(module.ok()) << message;
    EXPECT_EQ(module.error().kind, ErrorKind::kUnsupported);
    EXPECT_TRUE(module.error().message.starts_with("bad.mlir:")) << module.error().message;
    EXPECT_NE(module.error().message.find(message), std::string::npos) << module.error().message;
  }
  EXPECT_TRUE(Module::parse(of_body("  %0 = stablehlo.iota dim = 0 : tensor<9999999x9999999xi32>\n")).ok());
}

TEST(Malformed, FunctionsWithoutATerminator) {
  for (const char* last : {"%0 = stablehlo.add %x, %x : tensor<2xf32>", "stablehlo.return %x : tensor<2xf32>",
                           "\"foo.bar\"() : () -> ()"}) {
    const Result<Module> module =
        Module::parse(fmt::format("func.func @main(%x: tensor<2xf32>) {{\n  {}\n}}\n", last), "bad.mlir");
    ASSERT_FALSE(module.ok()) << last;
    EXPECT_EQ(module.error().message, "bad.mlir:1:1: expected the function 'main' to end in `return` of its results");
  }
}

// Functions as JAX writes them for the comparators of lax.approx_max_k.
TEST(Malformed, FunctionsMayEndAsRegionsDo) {
  const std::string text = R"(
    func.func @gt(%a: tensor<f32>, %b: tensor<f32>) -> tensor<i1> {
      %0 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return END
    }
    func.func @main(%x: tensor<f32>) -> tensor<i1> {
      %0 = call @gt(%x, %x) : (tensor<f32>, tensor<f32>) -> tensor<i1>
      return %0 : tensor<i1>
    })";
  const auto ending = [&](const std::string& end) {
    std::string ended = text;
    return Module::parse(ended.replace(ended.find("END"), 3, end), "bad.mlir");
  };
  Result<Module> right = ending("%0 : tensor<i1>");
  ASSERT_TRUE(right.ok()) << right.error().message;
  EXPECT_TRUE(inline_calls(*right).ok());
  for (const char* wrong : {"", "%a : tensor<f32>", "%0, %0 : tensor<i1>, tensor<i1>"}) {
    const Result<Module> module = ending(wrong);
    ASSERT_FALSE(module.ok()) << wrong;
    EXPECT_EQ(module.error().message, "bad.mlir:2:5: expected the function 'gt' to end in `return` of its results");
  }
}

TEST(Malformed, TerminatorsElsewhereThanAtTheEnd) {
  for (const char* wrong : {"\"stablehlo.return\"(%x) : (tensor<2xf32>) -> ()",
                            "%0 = \"stablehlo.return\"(%x) : (tensor<2xf32>) -> tensor<2xf32>",
                            "\"sdy.return\"(%x) : (tensor<2xf32>) -> ()"}) {
    const Result<Module> module =
        Module::parse(fmt::format("func.func @main(%x: tensor<2xf32>) {{\n  {}\n  return\n}}\n", wrong), "bad.mlir");
    ASSERT_FALSE(module.ok()) << wrong;
    EXPECT_EQ(module.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_TRUE(module.error().message.ends_with("to have no results and to be the last operation of its region"))
        << module.error().message;
  }
}

TEST(Malformed, EveryPrefixAndEveryMissingCharacterIsHandled) {
  const std::string text = R"(module @m {
  func.func @main(%x: tensor<4x6xf32>, %f: tensor<f32>) -> tensor<4xf32> {
    %c = stablehlo.constant dense<"0x0100"> : tensor<2xi1>
    %0 = stablehlo.dot_general %x, %x, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, HIGH] : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4xf32>
    %1 = stablehlo.reduce(%x init: %f) applies stablehlo.add across dimensions = [1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<4xf32>
    %2:2 = stablehlo.while(%a = %0, %b = %1) : tensor<4xf32>, tensor<4xf32> cond {
      %p = stablehlo.constant dense<true> : tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      stablehlo.return %b, %a : tensor<4xf32>, tensor<4xf32>
    }
    return %2#0 : tensor<4xf32>
  }
})";
  ASSERT_TRUE(Module::parse(text).ok());
  for (size_t i = 0; i < text.size(); i += 3) {
    EXPECT_FALSE(Module::parse(text.substr(0, i) + "\x01").ok()) << i;
    std::string without = text;
    without.erase(i, 1);
    (void)Module::parse(without);  // valid or not: parse() must return
  }
}

}  // namespace
}  // namespace flashlift::stablehlo
