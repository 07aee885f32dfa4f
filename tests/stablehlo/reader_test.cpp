#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stablehlo/read.h"
#include "stablehlo/reader/op_table.h"
#include "stablehlo/reader/ops.h"
#include "support/files.h"

namespace flashlift::stablehlo {
namespace {

std::string module_text(const char* name) {
  Result<std::string> text = read_file(std::string(FLASHLIFT_TEST_MODULES) + "/" + name);
  EXPECT_TRUE(text.ok()) << name;
  return text.ok() ? *text : std::string();
}

TEST(Reader, PrettyAndGenericFormAreTheSameModule) {
  const Module pretty = read(module_text("all_operations.mlir"));
  const Module generic = read(module_text("all_operations.generic.mlir"));
  EXPECT_EQ(pretty.print(), generic.print());
}

TEST(Reader, PrintedModuleReadsAsItself) {
  const std::string printed = read(module_text("all_operations.mlir")).print();
  EXPECT_EQ(read(printed).print(), printed);
}

// A new line in ops.def needs a line in the test module, too.
TEST(Reader, TestModuleHasEveryPrettySyntax) {
  const std::string text = module_text("all_operations.mlir");
  // StableHLO's library cannot print the first three without types that JAX does not build; the fourth is internal to
  // it.
  for (const OpInfo& op : all_ops()) {
    const bool exempt = op.kind == OpKind::kUniformQuantize || op.kind == OpKind::kUniformDequantize ||
                        op.kind == OpKind::kChloScan || op.kind == OpKind::kChloAsinAcosKernel;
    if (*op.syntax != '\0' && !exempt) {
      EXPECT_NE(text.find(std::string(op.name)), std::string::npos) << op.name;
    }
  }
}

TEST(Reader, OwnAttributesAreSortedFromDiscardableOnes) {
  const Module old_generic = read(in_main("%x: tensor<2x3xf32>", "tensor<3x2xf32>", R"(
    %0 = "stablehlo.transpose"(%x) {permutation = array<i64: 1, 0>, note = 1 : i32} : (tensor<2x3xf32>) -> tensor<3x2xf32>
    return %0 : tensor<3x2xf32>)"));
  mlir::Operation* op = find(old_generic, "stablehlo.transpose");
  EXPECT_TRUE(op->getDiscardableAttr("note"));
  EXPECT_FALSE(op->getDiscardableAttr("permutation"));
  EXPECT_TRUE(op->getAttr("permutation"));
}

TEST(Reader, BooleanConstantsInEitherSpelling) {
  // 104 elements, true where the index is a multiple of 3, in JAX's form: one byte per element.
  std::string bytes, bits;
  for (int i = 0; i < 104; ++i) {
    bytes += i % 3 == 0 ? "01" : "00";
  }
  for (int base = 0; base < 104; base += 8) {
    int byte = 0;
    for (int bit = 0; bit < 8; ++bit) {
      byte |= ((base + bit) % 3 == 0) << bit;
    }
    bits += fmt::format("{:02X}", byte);
  }
  const auto text = [](const std::string& digits) {
    return in_main("", "tensor<8x13xi1>",
                   "  %c = stablehlo.constant dense<\"0x" + digits +
                       "\"> : tensor<8x13xi1>\n"
                       "  return %c : tensor<8x13xi1>");
  };
  const std::string printed = read(text(bytes)).print();
  EXPECT_EQ(printed, read(text(bits)).print());
  EXPECT_NE(printed.find("dense<[[true, false, false, true"), std::string::npos);
  EXPECT_EQ(read(printed).print(), printed);
}

TEST(Reader, OtherDialectsPass) {
  const std::string printed = read(R"(
    module @m attributes {mhlo.num_partitions = 1 : i32, jax.uses_shape_polymorphism = false} {
      func.func public @main(%x: tensor<2xf32> {mhlo.sharding = "{replicated}", tf.aliasing_output = 0 : i32}) -> (tensor<2xf32> {jax.result_info = "result"}) {
        %c = arith.constant dense<1> : tensor<2xi32>
        %0 = "mhlo.erf"(%x) {x = #mhlo.thing<a = [1, 2]>} : (tensor<2xf32>) -> tensor<2xf32>
        %1 = "other.op"(%0) ({
          "other.yield"() : () -> ()
        }) : (tensor<2xf32>) -> !other.type<3>
        return %0 : tensor<2xf32>
      }
    })")
                                  .print();
  for (const char* part : {"mhlo.num_partitions = 1 : i32", "tf.aliasing_output = 0 : i32", "arith.constant dense<1>",
                           "#mhlo.thing<a = [1, 2]>", "!other.type<3>", "jax.result_info"}) {
    EXPECT_NE(printed.find(part), std::string::npos) << part;
  }
}

TEST(Reader, ElementwiseOperationsOfMhloPass) {
  const Module module = read(in_main("%x: tensor<2xf32>, %c: tensor<2xcomplex<f32>>", "tensor<2xf32>", R"(
    %0 = mhlo.erf %x : tensor<2xf32>
    %1 = mhlo.add %0, %x {mhlo.note = "sum"} : tensor<2xf32>
    %2 = mhlo.real %c : (tensor<2xcomplex<f32>>) -> tensor<2xf32>
    return %1 : tensor<2xf32>)"));
  EXPECT_EQ(find(module, "mhlo.add")->getNumOperands(), 2U);
  EXPECT_EQ(kind(find(module, "mhlo.add")), OpKind::kOther);
  const std::string printed = module.print();
  EXPECT_NE(printed.find("\"mhlo.erf\"(%arg0)"), std::string::npos) << printed;
  EXPECT_EQ(read(printed).print(), printed);
}

TEST(Reader, LocationsAreKeptWhereTheTextHasThem) {
  const std::string with = read(in_main("%x: tensor<2xf32>", "tensor<2xf32>", R"(
    %0 = stablehlo.negate %x : tensor<2xf32> loc("attention/neg"("model.py":12:3))
    return %0 : tensor<2xf32>)"))
                               .print();
  EXPECT_NE(with.find("\"model.py\":12:3"), std::string::npos);
  const Module without = read(in_main("%x: tensor<2xf32>", "tensor<2xf32>", R"(
    %0 = stablehlo.negate %x : tensor<2xf32>
    return %0 : tensor<2xf32>)"));
  EXPECT_EQ(without.print().find("loc("), std::string::npos);
  EXPECT_EQ(describe(find(without, "stablehlo.negate")->getLoc()), "test.mlir:3:10");
}

TEST(Reader, CloneIsIndependent) {
  const Module module = read(in_main("%x: tensor<2xf32>", "tensor<2xf32>", "  return %x : tensor<2xf32>"));
  const std::string before = module.print();
  Module copy = module.clone();
  copy.op()->setAttr("test.mark", mlir::UnitAttr::get(copy.context()));
  EXPECT_EQ(module.print(), before);
  EXPECT_NE(copy.print(), before);
}

}  // namespace
}  // namespace flashlift::stablehlo
