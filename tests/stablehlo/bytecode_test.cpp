// Modules in bytecode. The files in modules/ were written by jaxlib 0.10.2.
#include <cstring>

#include "gtest/gtest.h"
#include "stablehlo/bytecode/write.h"
#include "stablehlo/read.h"
#include "stablehlo/reader/ops.h"
#include "support/files.h"

namespace flashlift::stablehlo {
namespace {

std::string load(const std::string& name) {
  auto bytes = read_file(std::string(FLASHLIFT_TEST_MODULES) + "/" + name);
  EXPECT_TRUE(bytes.ok()) << (bytes.ok() ? "" : bytes.error().message);
  return bytes.ok() ? *bytes : std::string();
}

Module read_bytes(std::string_view bytes) {
  Result<Module> module = read_module(bytes, "test.mlirbc");
  if (!module.ok()) {
    ADD_FAILURE() << module.error().message;
    return read("module {}");
  }
  return *std::move(module);
}

std::string without(std::string text, const std::string& word) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
    text.erase(at, word.size());
  }
  return text;
}

TEST(Bytecode, TellsTheFormatByTheFirstBytes) {
  EXPECT_EQ(format_of("module {}").encoding, Encoding::kText);
  EXPECT_EQ(format_of(load("all_operations.mlirbc")).encoding, Encoding::kBytecode);
  const Format portable = format_of(load("versioned_operations.1.17.0.mlirbc"));
  EXPECT_EQ(portable.encoding, Encoding::kVhlo);
  EXPECT_EQ(print(portable.version), "1.17.0");
}

TEST(Bytecode, ReadsEveryOperationOfStablehloAndChlo) {
  const Module expected = read(without(load("all_operations.generic.mlir"), " {note}"));
  EXPECT_EQ(read_bytes(load("all_operations.mlirbc")).print(), expected.print());
}

TEST(Bytecode, ReadsEveryOperationOfVhlo) {
  const Module expected = read(load("versioned_operations.generic.mlir"));
  EXPECT_EQ(read_bytes(load("versioned_operations.1.17.0.mlirbc")).print(), expected.print());
}

TEST(Bytecode, ReadsWhatItWrites) {
  const Module all = read_bytes(load("all_operations.mlirbc"));
  const Module versioned = read_bytes(load("versioned_operations.1.17.0.mlirbc"));
  const auto written = [](const Module& module, const Format& format, VersionRule rule) {
    const Result<std::string> bytes = write_module(module, format, rule);
    EXPECT_TRUE(bytes.ok()) << (bytes.ok() ? "" : bytes.error().message);
    return bytes.ok() ? *bytes : std::string();
  };
  EXPECT_EQ(read_bytes(written(all, {Encoding::kBytecode}, VersionRule::kExactly)).print(), all.print());
  for (const bytecode::Version version : {bytecode::kOldest, bytecode::Version{1, 0, 0}, bytecode::kNewest}) {
    const std::string bytes = written(versioned, {Encoding::kVhlo, version}, VersionRule::kAtLeast);
    EXPECT_EQ(read_bytes(bytes).print(), versioned.print());
    EXPECT_GE(format_of(bytes).version, version);
  }
}

TEST(Bytecode, NamesTheVersionThatAModuleNeeds) {
  const Module module =
      read(in_main("%x: tensor<4xf8E8M0FNU>", "tensor<4xf8E8M0FNU>", "return %x : tensor<4xf8E8M0FNU>"));
  const Result<std::string> refused = write_module(module, {Encoding::kVhlo, {1, 0, 0}});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(refused.error().message.find("VHLO of version 1.8.0 or a later one"), std::string::npos)
      << refused.error().message;
  const Result<std::string> later = write_module(module, {Encoding::kVhlo, {1, 0, 0}}, VersionRule::kAtLeast);
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(print(format_of(*later).version), "1.8.0");
}

TEST(Bytecode, KeepsOtherDialectsAmongVhlo) {
  const Module module =
      read("sdy.mesh @m = <[\"a\"=2]>\n" +
           in_main("%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@m, [{\"a\"}]>}", "tensor<4xf32>",
                   "%0 = sdy.sharding_constraint %x <@m, [{\"a\", ?}p1]> : tensor<4xf32>\nreturn %0 : tensor<4xf32>"));
  const Result<std::string> bytes = write_module(module, {Encoding::kVhlo, {1, 9, 0}}, VersionRule::kAtLeast);
  ASSERT_TRUE(bytes.ok()) << bytes.error().message;
  EXPECT_EQ(print(format_of(*bytes).version), "1.11.0");
  // The sharding is read back as it was written.
  EXPECT_NE(read_bytes(*bytes).print().find("\"sdy.sharding_constraint\"(%arg0) <{sharding = #sdy.sharding<@m, "
                                            "[{\"a\", ?}p1]>}>"),
            std::string::npos);
}

TEST(Bytecode, KeepsLayoutsOfCustomCallsWithoutOperandsOrResults) {
  const Module module = read(in_main(
      "%x: tensor<4xf32>", "tensor<4xf32>",
      "stablehlo.custom_call @print(%x) {operand_layouts = [dense<0> : tensor<1xindex>], result_layouts = []} : "
      "(tensor<4xf32>) -> ()\n"
      "%0 = stablehlo.custom_call @load() {operand_layouts = [], result_layouts = [dense<0> : tensor<1xindex>]} : "
      "() -> tensor<4xf32>\nreturn %0 : tensor<4xf32>"));
  const Result<std::string> bytes = write_module(module, {Encoding::kVhlo});
  ASSERT_TRUE(bytes.ok()) << bytes.error().message;
  const std::string text = read_bytes(*bytes).print();
  EXPECT_NE(text.find("operand_layouts = [dense<0> : tensor<1xindex>], result_layouts = []"), std::string::npos)
      << text;
  EXPECT_NE(text.find("operand_layouts = [], result_layouts = [dense<0> : tensor<1xindex>]"), std::string::npos)
      << text;
}

TEST(Bytecode, PacksBooleans) {
  for (const char* list : {"[true]", "[false, true, true]", "[true, true, true, true, true, true, true, true, true]",
                           "[true, false, true, true, true, true, true, true, false]"}) {
    const auto size = static_cast<size_t>(std::count(list, list + std::strlen(list), ',') + 1);
    const std::string type = "tensor<" + std::to_string(size) + "xi1>";
    const Module module = read(in_main(
        "", type, "%0 = stablehlo.constant dense<" + std::string(list) + "> : " + type + "\nreturn %0 : " + type));
    for (const Encoding encoding : {Encoding::kBytecode, Encoding::kVhlo}) {
      const Module again = read_bytes(*write_module(module, {encoding}));
      EXPECT_EQ(
          constant(find(again, "stablehlo.constant")->getResult(0)),
          mlir::DenseElementsAttr::get(
              mlir::cast<mlir::ShapedType>(find(again, "stablehlo.constant")->getResult(0).getType()),
              llvm::SmallVector<bool>(constant(find(module, "stablehlo.constant")->getResult(0)).getValues<bool>())))
          << list;
    }
  }
}

TEST(Bytecode, RefusesEveryPartOfAFile) {
  for (const char* name : {"all_operations.mlirbc", "versioned_operations.1.17.0.mlirbc"}) {
    const std::string bytes = load(name);
    for (size_t size = 4; size < bytes.size(); ++size) {
      const Result<Module> module = read_module(std::string_view(bytes).substr(0, size), "cut.mlirbc");
      ASSERT_FALSE(module.ok()) << size;
      EXPECT_TRUE(module.error().message.starts_with("cut.mlirbc")) << module.error().message;
    }
  }
}

TEST(Bytecode, SaysWhatIsWrong) {
  const auto message = [](std::string_view bytes) {
    const Result<Module> module = read_module(bytes, "m");
    return module.ok() ? std::string("none") : module.error().message;
  };
  using namespace std::string_view_literals;
  EXPECT_NE(message("ML\xefR").find("byte 4: expected 1 more bytes, got 0: the bytecode is cut off or damaged"),
            std::string::npos);
  EXPECT_NE(message("ML\xefR\x21MLIR\0"sv).find("version 16; Flashlift reads versions up to 6"), std::string::npos);
  EXPECT_NE(message("ML\xefR\x0dMLIR\0"sv).find("section 0 is missing"), std::string::npos);
}

TEST(Bytecode, TakesFormsByName) {
  EXPECT_EQ(print(parse_target("vhlo=1.9.0", {})->format.version), "1.9.0");
  EXPECT_EQ(parse_target("", {Encoding::kBytecode})->format.encoding, Encoding::kBytecode);
  const Result<Target> wrong = parse_target("vhlo=1.9", {});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(
      wrong.error().message,
      "expected text, bytecode, vhlo or vhlo=VERSION as the form of the module, as in vhlo=1.9.0, got 'vhlo=1.9'");
}

}  // namespace
}  // namespace flashlift::stablehlo
