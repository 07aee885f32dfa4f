#include "stablehlo/reader/normalize.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "mlir/AsmParser/AsmParser.h"
#include "stablehlo/read.h"

namespace flashlift::stablehlo {
namespace {

constexpr const char* kCalls = R"(
func.func public @main(%x: tensor<2xf32>, %c: tensor<i32>) -> tensor<2xf32> {
  %0 = "stablehlo.case"(%c) ({
    %1 = func.call @outer(%x) : (tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %1 : tensor<2xf32>
  }, {
    %1 = func.call @unit(%x) : (tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %1 : tensor<2xf32>
  }) : (tensor<i32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func private @outer(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = call @inner(%x) : (tensor<2xf32>) -> tensor<2xf32>
  %1 = call @inner(%0) : (tensor<2xf32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
func.func private @inner(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.negate %x : tensor<2xf32>
  %dead = stablehlo.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func private @unit(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}
)";

TEST(Normalize, InlinesNestedCallsInsideRegions) {
  Module module = read(kCalls);
  ASSERT_TRUE(inline_calls(module).ok());
  EXPECT_EQ(count(module, "func.call"), 0);
  remove_dead_code(module);
  EXPECT_EQ(count(module, "func.func"), 1);
  EXPECT_EQ(count(module, "stablehlo.negate"), 2);
  EXPECT_EQ(count(module, "stablehlo.add"), 0);
  EXPECT_EQ(read(module.print()).print(), module.print());
}

TEST(Normalize, InlinedOperationsHaveTheFrontendAttributesOfTheirCall) {
  Module module = read(R"(
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = call @f(%x) {mhlo.frontend_attributes = {_xla_compute_type = "host", a = "call"}} : (tensor<2xf32>) -> tensor<2xf32>
      %1 = call @f(%0) : (tensor<2xf32>) -> tensor<2xf32>
      return %1 : tensor<2xf32>
    }
    func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.negate %x : tensor<2xf32>
      %1 = stablehlo.abs %0 {mhlo.frontend_attributes = {a = "own"}} : tensor<2xf32>
      return %1 : tensor<2xf32>
    })");
  ASSERT_TRUE(inline_calls(module).ok());
  remove_dead_code(module);
  const auto attributes_of = [&](llvm::StringRef name) {
    llvm::SmallVector<mlir::Attribute> found;
    module.op().walk([&](mlir::Operation* op) {
      if (op->getName().getStringRef() == name) {
        found.push_back(op->getAttr("mhlo.frontend_attributes"));
      }
    });
    return found;
  };
  const auto parse = [&](llvm::StringRef text) { return mlir::parseAttribute(text, module.op().getContext()); };
  using Attributes = llvm::SmallVector<mlir::Attribute>;
  EXPECT_EQ(attributes_of("stablehlo.negate"),
            (Attributes{parse(R"({_xla_compute_type = "host", a = "call"})"), mlir::Attribute()}));
  EXPECT_EQ(attributes_of("stablehlo.abs"),
            (Attributes{parse(R"({_xla_compute_type = "host", a = "own"})"), parse(R"({a = "own"})")}));
}

TEST(Normalize, RefusesRecursion) {
  Module module = read(R"(
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = call @other(%x) : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }
    func.func private @other(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = call @main(%x) : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    })");
  const Status status = inline_calls(module);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(status.error().message.find("calls itself"), std::string::npos);
}

TEST(Normalize, RefusesExponentialGrowth) {
  std::string text =
      "func.func @f0(%x: tensor<2xf32>) -> tensor<2xf32> {\n  %0 = stablehlo.negate %x : tensor<2xf32>\n"
      "  return %0 : tensor<2xf32>\n}\n";
  for (int i = 1; i < 40; ++i) {
    text += fmt::format(
        "func.func @f{}(%x: tensor<2xf32>) -> tensor<2xf32> {{\n"
        "  %0 = call @f{}(%x) : (tensor<2xf32>) -> tensor<2xf32>\n"
        "  %1 = call @f{}(%0) : (tensor<2xf32>) -> tensor<2xf32>\n"
        "  return %1 : tensor<2xf32>\n}}\n",
        i, i - 1, i - 1);
  }
  Module module = read(text);
  const Status status = inline_calls(module);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kUnsupported);
}

TEST(Normalize, RefusesDeepCallChains) {
  std::string text = "func.func @f0(%x: tensor<2xf32>) -> tensor<2xf32> {\n  return %x : tensor<2xf32>\n}\n";
  for (int i = 1; i < 3000; ++i) {
    text = fmt::format(
               "func.func @f{}(%x: tensor<2xf32>) -> tensor<2xf32> {{\n"
               "  %0 = call @f{}(%x) : (tensor<2xf32>) -> tensor<2xf32>\n  return %0 : tensor<2xf32>\n}}\n",
               i, i - 1) +
           text;
  }
  Module module = read(text);
  EXPECT_FALSE(inline_calls(module).ok());
}

constexpr const char* kComposites = R"(
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.composite "a.one" %x {decomposition = @one} : (tensor<2xf32>) -> tensor<2xf32>
  %1 = stablehlo.composite "a.two" %0 {decomposition = @two} : (tensor<2xf32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
func.func private @one(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.negate %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func private @two(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.composite "a.one" %x {decomposition = @one} : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
)";

TEST(Normalize, InlinesComposites) {
  Module all = read(kComposites);
  ASSERT_TRUE(inline_composites(all).ok());
  remove_dead_code(all);
  EXPECT_EQ(count(all, "stablehlo.composite"), 0);
  EXPECT_EQ(count(all, "stablehlo.negate"), 2);

  Module some = read(kComposites);
  ASSERT_TRUE(inline_composites(some, [](mlir::Operation* op) {
                return op->getAttrOfType<mlir::StringAttr>("name").getValue() == "a.two";
              }).ok());
  remove_dead_code(some);
  EXPECT_EQ(count(some, "stablehlo.composite"), 2);
  EXPECT_EQ(count(some, "func.func"), 2);  // @one is still named, @two no longer
}

TEST(Normalize, RefusesACompositeWithoutItsFunction) {
  for (const char* function :
       {"", "func.func private @f(%x: tensor<3xf32>) -> tensor<3xf32> {\n  return %x : tensor<3xf32>\n}"}) {
    Module module = read(in_main("%x: tensor<2xf32>", "tensor<2xf32>", R"(
      %0 = stablehlo.composite "c" %x {decomposition = @f} : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>)") +
                         function);
    const Status status = inline_composites(module);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().kind, ErrorKind::kInvalidArgument);
  }
}

TEST(Normalize, KeepsFunctionsThatAttributesName) {
  Module module = read(R"(
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.custom_call @t(%x) {called_computations = [@f]} : (tensor<2xf32>) -> tensor<2xf32>
      "other.op"() {text = #other.ref<@g>} : () -> ()
      return %0 : tensor<2xf32>
    }
    func.func private @f() { return }
    func.func private @g() { return }
    func.func private @unnamed() { return })");
  remove_dead_code(module);
  EXPECT_EQ(count(module, "func.func"), 3);
}

TEST(Normalize, KeepsWhatHasEffects) {
  Module module = read(in_main("%x: tensor<2xf32>", "tensor<2xf32>", R"(
    %0 = stablehlo.custom_call @t(%x) : (tensor<2xf32>) -> tensor<2xf32>
    %1 = "unknown.op"(%x) : (tensor<2xf32>) -> tensor<2xf32>
    %2 = stablehlo.negate %x : tensor<2xf32>
    return %x : tensor<2xf32>)"));
  remove_dead_code(module);
  EXPECT_EQ(count(module, "stablehlo.custom_call"), 1);
  EXPECT_EQ(count(module, "unknown.op"), 1);
  EXPECT_EQ(count(module, "stablehlo.negate"), 0);
}

}  // namespace
}  // namespace flashlift::stablehlo
