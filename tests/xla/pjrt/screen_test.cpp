#include "xla/pjrt/screen.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

namespace flashlift::pjrt {
namespace {

using namespace std::literals;

TEST(Screen, TellsFormsApart) {
  EXPECT_EQ(form_of("module @m {}"), "text");
  EXPECT_EQ(form_of(""), "text");
  EXPECT_EQ(form_of("ML\xefR\x0dStableHLO_v1.16.1\0rest"sv), "VHLO 1.16.1");
  EXPECT_EQ(form_of("ML\xefR\x06MLIR23.0.0git\0rest"sv), "bytecode");
  EXPECT_EQ(form_of("ML\xefR"sv), "bytecode");
  EXPECT_EQ(form_of("ML\xefR\x0dStableHLO_v"sv), "VHLO ");
}

TEST(Screen, FindsTheModulesName) {
  EXPECT_EQ(name_of("#loc = loc(unknown)\nmodule @jit_f.1 attributes {a = 1 : i32} {}"), "jit_f.1");
  EXPECT_EQ(name_of(std::string(100'000, '#') + "\nmodule @jit_f {}"), "jit_f");
  EXPECT_EQ(name_of("module {}"), "");
  EXPECT_EQ(name_of("module @"), "");
  EXPECT_EQ(name_of("ML\xefR\x0dmodule @x"sv), "");
}

TEST(Screen, AsksForAProductAndAnExponential) {
  EXPECT_TRUE(may_hold_attention("stablehlo.dot_general ... stablehlo.exponential"));
  EXPECT_TRUE(may_hold_attention("\"stablehlo.dot\"(%0, %1) \"stablehlo.exponential\"(%2)"));
  EXPECT_TRUE(may_hold_attention("ML\xefR exponential_v2\0dot_general_v2\0"sv));
  EXPECT_TRUE(may_hold_attention("ML\xefR\0exponential\0dot\0"sv));
  EXPECT_TRUE(may_hold_attention("exponential_minus_one exponential dot_general"));
  EXPECT_TRUE(may_hold_attention("stablehlo.custom_call @__cudnn$fmhaSoftmax(%0)"));
  EXPECT_TRUE(may_hold_attention("stablehlo.dot_general stablehlo.power"));
  EXPECT_TRUE(may_hold_attention("stablehlo.multiply stablehlo.reduce stablehlo.exponential"));
  EXPECT_TRUE(may_hold_attention("ML\xefR power_v1\0multiply_v1\0reduce_v1\0"sv));
  EXPECT_FALSE(may_hold_attention("stablehlo.dot_general stablehlo.exponential_minus_one"));
  EXPECT_FALSE(may_hold_attention("stablehlo.multiply stablehlo.exponential"));
  EXPECT_FALSE(may_hold_attention("stablehlo.exponential stablehlo.add"));
  EXPECT_FALSE(may_hold_attention("stablehlo.dot_general stablehlo.tanh"));
  EXPECT_FALSE(may_hold_attention(""));
}

TEST(Screen, CountsPartitions) {
  EXPECT_EQ(partition_count(""), 1);
  EXPECT_EQ(partition_count("\x1a\x04\x20\x01\x28\x01"sv), 1);
  EXPECT_EQ(partition_count("\x1a\x04\x20\x01\x28\x08"sv), 8);
  EXPECT_EQ(partition_count("\x1a\x05\x20\x01\x28\x80\x01"sv), 128);
  // A string, a fixed64 and a fixed32 come before it, and a field with a two-byte key after it.
  EXPECT_EQ(partition_count("\x0a\x02zz\x1a\x16\x11xxxxxxxx\x1dxxxx\x28\x02\x9a\x01\x03yyy"sv), 2);
  // Field 4 holds replicas, which are not partitions; the last value counts.
  EXPECT_EQ(partition_count("\x1a\x04\x20\x08\x28\x01"sv), 1);
  EXPECT_EQ(partition_count("\x1a\x04\x28\x04\x28\x01"sv), 1);
  // Options to which others were appended are merged, field by field.
  EXPECT_EQ(partition_count("\x1a\x04\x20\x01\x28\x04\x1a\x02\x20\x02"sv), 4);
  EXPECT_EQ(partition_count("\x1a\x04\x20\x01\x28\x04\x1a\x02\x28\x02"sv), 2);
  EXPECT_EQ(partition_count("\x1a\x02\x28\x04\x1a\x00"sv), 4);
}

TEST(Screen, RefusesWhatAreNoOptions) {
  EXPECT_EQ(partition_count("\xff\xff"sv), 0);
  EXPECT_EQ(partition_count("\x1a\x7f\x20"sv), 0);      // longer than what follows
  EXPECT_EQ(partition_count("\x1b"sv), 0);              // a group
  EXPECT_EQ(partition_count("\x1a\x02\x28\x80"sv), 0);  // a number without an end
  EXPECT_EQ(partition_count("\x1a\x02\x28\x04\x1a\x01\x28"sv), 0);
  EXPECT_EQ(partition_count("\x1a\x0b\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"sv), INT32_MAX);
}

// Copies of exactly their size, so that AddressSanitizer reports a read past them.
TEST(Screen, ReadsNothingBeyondItsInput) {
  std::mt19937 random(1);
  const std::string_view seeds[] = {"\x1a\x05\x20\x01\x28\x80\x01\x0a\x02zz"sv,
                                    "ML\xefR\x0dStableHLO_v1.16.1\0exponential_v2"sv,
                                    "module @a attributes {mhlo.num_partitions = 4} dot_general exponential"sv};
  for (int i = 0; i < 30000; ++i) {
    const std::string_view seed = seeds[random() % std::size(seeds)];
    const size_t size = random() % (seed.size() + 1);
    const auto bytes = std::make_unique<char[]>(size);
    std::copy_n(seed.begin(), size, bytes.get());
    for (size_t changes = random() % 4; changes > 0 && size > 0; --changes) {
      bytes[random() % size] = static_cast<char>(random());
    }
    const std::string_view input(bytes.get(), size);
    static_cast<void>(form_of(input) + name_of(input));
    static_cast<void>(may_hold_attention(input));
    EXPECT_GE(partition_count(input), 0);
  }
}

}  // namespace
}  // namespace flashlift::pjrt
