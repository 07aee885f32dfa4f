#include "plan/cpu_list.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "plan/implementation.h"

namespace flashlift::plan {
namespace {

using cpu::Capabilities;
using cpu::Isa;
using enum cpu::Capability;

const Capabilities kHaswell{kAvx2};
const Capabilities kSkylakeServer{kAvx2, kAvx512};
const Capabilities kCooperLake{kAvx2, kAvx512, kAvx512Bf16};
const Capabilities kZen4{kAvx2, kAvx512, kAvx512Bf16, kFastBf16Dot};
const Capabilities kSapphireRapids{kAvx2, kAvx512, kAvx512Bf16, kAmx};

// The first implementation of the list that accepts the problem; if none does, the reasons.
std::string first_of_list(const std::string& text, const CpuMachine& machine, const std::string& requested = "") {
  const Result<Problem> problem = parse_problem(text);
  EXPECT_TRUE(problem.ok()) << problem.error().message;
  const auto answers = evaluate(cpu_list(), requested, "the CPU", [&](const CpuImplementation& row, bool by_name) {
    return refusal(row, *problem, machine, by_name);
  });
  if (!answers.ok()) {
    return answers.error().message;
  }
  const CpuImplementation* const row = first_of(*answers);
  return row == nullptr ? reasons_of(*answers) : row->name();
}

TEST(CpuList, GivesEachProcessorItsFastestKernels) {
  const std::string f32 = "attn h1 s8 d8 f32";
  const std::string bf16 = "attn h1 s8 d8 bf16";
  EXPECT_EQ(first_of_list(f32, {kHaswell, {}}), "cpu_avx2");
  EXPECT_EQ(first_of_list(f32, {kSapphireRapids, {}}), "cpu_avx512");
  EXPECT_EQ(first_of_list(bf16, {kSkylakeServer, {}}), "cpu_avx512");
  EXPECT_EQ(first_of_list(bf16, {kCooperLake, {}}), "cpu_avx512");
  EXPECT_EQ(first_of_list(bf16, {kZen4, {}}), "cpu_avx512_bf16");
  EXPECT_EQ(first_of_list(bf16, {kSapphireRapids, {}}), "cpu_amx");
  EXPECT_EQ(first_of_list("attn h1 s8 d8 bf16 dropout=0.1", {kSapphireRapids, {}}), "cpu_avx512");
}

// A module that computes in f32 from bf16 operands expects an output as exact as that.
TEST(CpuList, RoundsNothingToBf16OnTheWayToAnF32Output) {
  const std::string wide = "attn h1 s8 d8 bf16 out=f32";
  EXPECT_EQ(first_of_list(wide, {kZen4, {}}), "cpu_avx512");
  EXPECT_EQ(first_of_list(wide, {kSapphireRapids, {}}), "cpu_avx512");
  EXPECT_EQ(first_of_list(wide, {kSapphireRapids, {}}, "cpu_amx"), "cpu_amx");
  EXPECT_EQ(first_of_list("attn h1 s8 d8 bf16 d_out=inputs", {kZen4, {}}), "cpu_avx512_bf16");
}

// For every processor and problem.
TEST(CpuList, EndsInAPortableImplementation) {
  for (const char* problem : {"attn h1 s8 d8 f32", "attn h1 s8 d8 bf16 dropout=0.1", "attn h1 s8 d8 f16 causal"}) {
    EXPECT_EQ(first_of_list(problem, {Capabilities{}, {}}), "cpu_portable");
    EXPECT_EQ(first_of_list(problem, {kSapphireRapids, Isa::kPortable}), "cpu_portable");
    EXPECT_EQ(first_of_list(problem, {kSapphireRapids, {}}, "cpu_portable"), "cpu_portable");
  }
}

TEST(CpuList, WhatIsAskedForByNameRunsOrSaysWhyNot) {
  const std::string bf16 = "attn h1 s8 d8 bf16";
  EXPECT_EQ(first_of_list(bf16, {kCooperLake, {}}, "cpu_avx512_bf16"), "cpu_avx512_bf16");
  EXPECT_NE(first_of_list(bf16, {kZen4, {}}, "cpu_amx").find("this processor does not have AMX with bf16 tiles"),
            std::string::npos);
  EXPECT_NE(first_of_list("attn h1 s8 d8 f16", {kSapphireRapids, {}}, "cpu_amx")
                .find("multiplies bf16 operands only, and these are f16"),
            std::string::npos);
}

// Capabilities are a set: a machine may have AMX and lack the capabilities that are listed before it.
TEST(CpuList, CapabilitiesAreASet) {
  EXPECT_EQ(first_of_list("attn h1 s8 d8 bf16", {Capabilities{kAvx2, kAmx}, {}}), "cpu_avx2");
  EXPECT_TRUE(kZen4.has_all(kCooperLake));
  EXPECT_FALSE(kSapphireRapids.has_all(kZen4));
  EXPECT_EQ(kSapphireRapids.missing(kZen4), kFastBf16Dot);
  EXPECT_EQ(kZen4.missing(kHaswell), std::nullopt);
}

TEST(CpuList, TheVariableBeginsWithAnImplementationInTheirOrder) {
  ASSERT_EQ(setenv("FLASHLIFT_ISA", "avx512", 1), 0);
  Result<CpuMachine> machine = this_cpu();
  ASSERT_TRUE(machine.ok()) << machine.error().message;
  EXPECT_EQ(machine->first, Isa::kAvx512);
  EXPECT_EQ(best_isa({kSapphireRapids, machine->first}), Isa::kAvx512);
  EXPECT_EQ(best_isa({kSapphireRapids, {}}), Isa::kAmx);
  EXPECT_EQ(best_isa({kHaswell, machine->first}), Isa::kAvx2);
  ASSERT_EQ(setenv("FLASHLIFT_ISA", "sse", 1), 0);
  machine = this_cpu();
  ASSERT_FALSE(machine.ok());
  EXPECT_EQ(machine.error().kind, ErrorKind::kInvalidArgument);
  ASSERT_EQ(unsetenv("FLASHLIFT_ISA"), 0);
  const std::string refused = first_of_list("attn h1 s8 d8 bf16", {kSapphireRapids, Isa::kAvx2}, "cpu_amx");
  EXPECT_NE(refused.find("cpu_amx: FLASHLIFT_ISA is avx2"), std::string::npos) << refused;
}

}  // namespace
}  // namespace flashlift::plan
