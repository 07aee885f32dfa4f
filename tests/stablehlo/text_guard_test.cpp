#include "stablehlo/reader/text_guard.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace flashlift::stablehlo {
namespace {

TEST(TextGuard, PacksBooleansOfOneByteEach) {
  std::string out;
  // Ten elements, true at 0, 3 and 9: bits 0b00001001 and 0b00000010.
  const std::string text = "x dense<\"0x01000001000000000001\"> : tensor<2x5xi1> y";
  ASSERT_TRUE(pack_bool_constants(text, out));
  EXPECT_EQ(out, "x dense<\"0x0902\">                 : tensor<2x5xi1> y");
  EXPECT_EQ(out.size(), text.size());
}

TEST(TextGuard, ReadsOneByteAsTheValueOfAllElements) {
  std::string out;
  for (const char* digits : {"01", "05", "fe"}) {
    for (const char* type : {"tensor<i1>", "tensor<3xi1>", "tensor<8xi1>", "tensor<2x50xi1>"}) {
      out.clear();
      ASSERT_TRUE(pack_bool_constants(fmt::format("dense<\"0x{}\"> : {}", digits, type), out)) << digits << type;
      EXPECT_EQ(out, fmt::format("dense<\"0xFF\"> : {}", type));
    }
  }
  EXPECT_FALSE(pack_bool_constants("dense<\"0x00\"> : tensor<3xi1>", out));
  EXPECT_FALSE(pack_bool_constants("dense<\"0x0Z\"> : tensor<3xi1>", out));
}

TEST(TextGuard, LeavesPackedBitsAndOtherTypesAlone) {
  std::string out;
  for (const char* text : {"dense<\"0x0902\"> : tensor<2x5xi1>", "dense<\"0x01000001\"> : tensor<4xi8>",
                           "dense<\"0xFF\"> : tensor<100xi1>", "dense<\"0x0100\"> : tensor<2xi16>", "dense<\"0x0100",
                           "dense<\"0x01ZZ\"> : tensor<2xi1>", "dense<\"0x\"> : tensor<0xi1>",
                           "dense<\"0x00\"> : tensor<9999999999x9999999999x9999999999xi1>"}) {
    EXPECT_FALSE(pack_bool_constants(text, out)) << text;
  }
}

TEST(TextGuard, SpellsBooleansInNestedLists) {
  EXPECT_EQ(spell_bool_constants("a dense<\"0x0902\"> : tensor<2x5xi1> b dense<\"0x01\"> : tensor<1xi8>"),
            "a dense<[[true, false, false, true, false], [false, false, false, false, true]]> : tensor<2x5xi1> b "
            "dense<\"0x01\"> : tensor<1xi8>");
}

TEST(TextGuard, RefusesBytecodeAndSaysWhatToDo) {
  const Status status = check_module_text("ML\xefR\x01", "model.mlirbc");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(status.error().message.find("model.mlirbc: this is MLIR bytecode"), std::string::npos);
  EXPECT_NE(status.error().message.find("as_text()"), std::string::npos);
}

TEST(TextGuard, LimitsNestingOutsideStringsAndComments) {
  const std::string deep(100'000, '[');
  for (const std::string& text :
       {deep, std::string(100'000, '<'), std::string(100'000, '('), std::string(100'000, '-')}) {
    const Status status = check_module_text("\n  x" + text, "m");
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("m:2:"), std::string::npos) << status.error().message;
  }
  EXPECT_TRUE(check_module_text("\"" + deep + "\"", "m").ok());
  EXPECT_TRUE(check_module_text("// " + deep + "\n", "m").ok());
  EXPECT_TRUE(check_module_text("\"a\\\"" + deep + "\"", "m").ok());
  std::string flat;
  for (int i = 0; i < 100'000; ++i) {
    flat += "{([<a -> b>])} x <= y";
  }
  EXPECT_TRUE(check_module_text(flat, "m").ok());
}

}  // namespace
}  // namespace flashlift::stablehlo
