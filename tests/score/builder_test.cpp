#include "flashlift/builder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "score/verify.h"

namespace flashlift {
namespace {

TEST(Builder, TracesALambdaWithCapturedTensors) {
  const Captured slopes("slopes", DType::kF32, {8});
  const auto program = trace_score_mod([&](Expr score, Expr, Expr h, Expr q, Expr kv) {
    const Expr slope = slopes(h);  // a statement of its own: C++ may evaluate the operands of * in any order
    return score + slope * (kv - q);
  });
  ASSERT_TRUE(program.ok()) << program.error().message;
  EXPECT_EQ(print_one_line(*program),
            "score_mod(slopes: f32[8]) { %0 = load slopes[h]; %1 = sub kv, q; %2 = to_f32 %1; %3 = mul %0, %2; "
            "%4 = add score, %3; return %4 }");
}

TEST(Builder, TracesAMaskWithLogicalOperators) {
  const auto program = trace_mask_mod([](Expr, Expr, Expr q, Expr kv) { return kv <= q && q - kv < 128; });
  ASSERT_TRUE(program.ok()) << program.error().message;
  EXPECT_EQ(print_one_line(*program),
            "mask_mod() { %0 = le kv, q; %1 = sub q, kv; %2 = lt %1, 128; %3 = and %0, %2; return %3 }");
}

TEST(Builder, TakesAssignmentsThatCompute) {
  const Captured slopes("slopes", DType::kF32, {8});
  const auto score_mod = trace_score_mod([&](Expr score, Expr, Expr h, Expr q, Expr kv) {
    Expr distance = kv;
    distance -= q;
    score *= 2.0f;
    score += slopes[h];
    score /= distance;
    return score;
  });
  ASSERT_TRUE(score_mod.ok()) << score_mod.error().message;
  EXPECT_EQ(print_one_line(*score_mod),
            "score_mod(slopes: f32[8]) { %0 = sub kv, q; %1 = mul score, 2.0; %2 = load slopes[h]; %3 = add %1, %2; "
            "%4 = to_f32 %0; %5 = div %3, %4; return %5 }");
  const auto mask_mod = trace_mask_mod([](Expr b, Expr h, Expr q, Expr kv) {
    q %= 7;
    kv <<= 2;
    h >>= 1;
    Expr keep = kv <= q;
    keep &= b == 0;
    keep |= h == 3;
    keep ^= true;
    return keep;
  });
  ASSERT_TRUE(mask_mod.ok()) << mask_mod.error().message;
  EXPECT_EQ(print_one_line(*mask_mod),
            "mask_mod() { %0 = rem q, 7; %1 = shl kv, 2; %2 = shr h, 1; %3 = le %1, %0; %4 = eq b, 0; %5 = and %3, %4; "
            "%6 = eq %2, 3; %7 = or %5, %6; %8 = xor %7, true; return %8 }");
}

TEST(Builder, HasTheOperationsWithoutAnOperator) {
  const auto program = trace_mask_mod([](Expr, Expr, Expr q, Expr kv) {
    const Expr bits = ushr(bitcast_i32(kv * 0.5f), 3);
    return ~(sign(kv - q) == 1) & is_finite(bitcast_f32(~bits));
  });
  ASSERT_TRUE(program.ok()) << program.error().message;
  EXPECT_EQ(program->nodes.back().op, Op::k_and);
  const auto of_float = trace_score_mod([](Expr score, Expr, Expr, Expr, Expr) { return ~score; });
  EXPECT_FALSE(of_float.ok());
}

TEST(Builder, ReadsTensorsOfRankZero) {
  const Captured length("length", DType::kI32, {});
  const auto program = trace_mask_mod([&](Expr, Expr, Expr, Expr kv) { return kv < length(); });
  ASSERT_TRUE(program.ok()) << program.error().message;
  EXPECT_EQ(print_one_line(*program), "mask_mod(length: i32[]) { %0 = load length[]; %1 = lt kv, %0; return %1 }");
}

TEST(Builder, ReportsTheFirstError) {
  const Captured table("table", DType::kF32, {4, 4});
  const auto wrong_rank = trace_score_mod([&](Expr, Expr, Expr h, Expr, Expr) { return table(h); });
  ASSERT_FALSE(wrong_rank.ok());
  EXPECT_EQ(wrong_rank.error().message, "captured tensor `table` has 2 dimensions, but is read with 1 index");
  const auto wrong_index = trace_score_mod([&](Expr score, Expr, Expr h, Expr, Expr) { return table(h, score); });
  ASSERT_FALSE(wrong_index.ok());
  EXPECT_NE(wrong_index.error().message.find("indexed by f32"), std::string::npos);
  const auto reads_score =
      trace_mask_mod([](Expr, Expr, Expr, Expr) { return ProgramBuilder::current()->input(Op::k_score) > 0.0f; });
  EXPECT_FALSE(reads_score.ok());
}

// A loop with a wrong bound would fill the memory before anything refused the program.
TEST(Builder, StopsRecordingAtTheLargestProgram) {
  const auto add_numbers = [](int64_t count) {
    return trace_score_mod([=](Expr score, Expr, Expr, Expr, Expr) {
      for (int64_t i = 0; i < count; ++i) {
        score += static_cast<float>(i + 1);
      }
      return score;
    });
  };
  const int64_t most = (kMaxProgramNodes - 5) / 2;  // five inputs, and a constant and a sum for each number
  EXPECT_TRUE(add_numbers(most).ok());
  for (const int64_t count : {most + 1, int64_t{3'000'000}}) {
    const Result<Program> program = add_numbers(count);
    ASSERT_FALSE(program.ok());
    EXPECT_EQ(program.error().message, "a program has at most 4096 nodes, and this function records more");
  }
  // Outside of a trace, operations are recorded for nothing; the next trace is a new one.
  Expr sum = 0;
  for (int i = 1; i < 10'000; ++i) {
    sum += i;
  }
  EXPECT_TRUE(add_numbers(most).ok());
}

TEST(Builder, RefusesMasksAsScoresAndScoresAsMasks) {
  const auto score = trace_score_mod([](Expr, Expr, Expr, Expr q, Expr kv) { return kv <= q; });
  ASSERT_FALSE(score.ok());
  EXPECT_NE(score.error().message.find("a function that keeps keys is a mask_mod"), std::string::npos);
  const auto mask = trace_mask_mod([](Expr, Expr, Expr q, Expr kv) { return select(kv <= q, 0.0f, -INFINITY); });
  ASSERT_FALSE(mask.ok());
  EXPECT_NE(mask.error().message.find("expected i1, true where a key is kept"), std::string::npos);
  // Integers are numbers and, as in C, truth values.
  EXPECT_TRUE(trace_score_mod([](Expr, Expr, Expr, Expr q, Expr kv) { return kv - q; }).ok());
  EXPECT_TRUE(trace_mask_mod([](Expr, Expr, Expr q, Expr kv) { return kv - q; }).ok());
}

// Their numbers would name other nodes of this program.
TEST(Builder, RefusesWhatAnotherTraceMade) {
  const auto expect_refused = [](const Result<Program>& program) {
    ASSERT_FALSE(program.ok()) << print_one_line(*program);
    EXPECT_NE(program.error().message.find("an Expr of another trace"), std::string::npos) << program.error().message;
  };
  const Expr sum = Expr(1) + 2;
  const Captured table("table", DType::kI32, {4});
  const Expr element = table(0);
  Expr leaked = 0;
  const auto first = trace_mask_mod([&](Expr, Expr, Expr q, Expr kv) {
    leaked = q;
    return kv <= q;
  });
  ASSERT_TRUE(first.ok());
  for (const Expr other : {sum, element, q_len(), leaked}) {
    expect_refused(trace_mask_mod([&](Expr, Expr, Expr, Expr kv) { return kv <= other; }));
    expect_refused(trace_mask_mod([&](Expr, Expr, Expr, Expr) { return other; }));
    expect_refused(trace_mask_mod([&](Expr, Expr, Expr, Expr kv) { return kv <= table(other); }));
  }
  const auto nested = trace_mask_mod([&](Expr, Expr, Expr q, Expr kv) {
    expect_refused(trace_mask_mod([&](Expr, Expr, Expr, Expr) { return kv <= q; }));
    return kv <= q;
  });
  ASSERT_TRUE(nested.ok()) << nested.error().message;
  EXPECT_EQ(print_one_line(*nested), "mask_mod() { %0 = le kv, q; return %0 }");
}

TEST(Builder, TakesBoolsButNoPointers) {
  static_assert(std::is_convertible_v<bool, Expr>);
  static_assert(!std::is_convertible_v<const char*, Expr> && !std::is_convertible_v<int*, Expr>);
  static_assert(!std::is_convertible_v<decltype(&kv_len), Expr> && !std::is_convertible_v<std::nullptr_t, Expr>);
  const auto all = trace_mask_mod([](Expr, Expr, Expr, Expr) { return true; });
  ASSERT_TRUE(all.ok()) << all.error().message;
  EXPECT_EQ(print_one_line(*all), "mask_mod() { return true }");
}

// Sizes of containers and constants with a suffix are common in such lambdas.
TEST(Builder, TakesEveryTypeOfIntegers) {
  const std::vector<bool> flags = {true};
  std::vector<bool> changing = {true};
  EXPECT_EQ(Expr(3U).type(), Type::kI64);
  EXPECT_EQ(Expr(short{3}).type(), Type::kI32);
  EXPECT_EQ(Expr(uint8_t{3}).type(), Type::kI32);
  EXPECT_EQ(Expr(changing[0]).type(), Type::kI1);
  const auto text_of = [](auto limit) {
    const Result<Program> mask = trace_mask_mod([&](Expr, Expr, Expr q, Expr kv) { return q - kv < limit; });
    EXPECT_TRUE(mask.ok());
    return mask.ok() ? print(*mask) : std::string();
  };
  const std::string expected = text_of(int64_t{3});
  EXPECT_NE(text_of(3), expected);
  EXPECT_EQ(text_of(3U), expected);
  EXPECT_EQ(text_of(size_t{3}), expected);
  EXPECT_EQ(text_of(3LL), expected);
  EXPECT_EQ(text_of(3ULL), expected);
  EXPECT_EQ(text_of(-3LL), text_of(int64_t{-3}));
  EXPECT_EQ(text_of(4000000000U), text_of(int64_t{4000000000}));
  EXPECT_EQ(text_of(std::numeric_limits<size_t>::max()), text_of(std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(text_of(3.0L), text_of(3.0F));
  EXPECT_TRUE(trace_mask_mod([&](Expr, Expr, Expr q, Expr kv) { return (kv <= q && flags[0]) || changing[0]; }).ok());
}

// A name with these characters would break the text form.
TEST(Builder, RefusesNamesThatAreNoWords) {
  for (const char* name : {"", "my table", "1st", "a: f32[2], b", "\x1b[31m"}) {
    const Captured table(name, DType::kF32, {4});
    const auto program = trace_score_mod([&](Expr score, Expr, Expr h, Expr, Expr) { return score + table(h); });
    ASSERT_FALSE(program.ok()) << name;
    EXPECT_NE(program.error().message.find("expected a letter or _"), std::string::npos) << program.error().message;
  }
}

TEST(Builder, RefusesConstantsThatDoNotFitTheirType) {
  const auto of_constant = [](Type type, int64_t payload) {
    Program program{.kind = ProgramKind::kMaskMod};
    program.nodes = {{.op = Op::k_constant, .type = type, .operands = {}, .payload = payload}};
    program.nodes.push_back({.op = Op::k_ne, .type = Type::kI1, .operands = {0, 0}});
    program.result = 1;
    return score::verify(program);
  };
  EXPECT_TRUE(of_constant(Type::kI1, 1).ok());
  EXPECT_TRUE(of_constant(Type::kI32, -(int64_t{1} << 31)).ok());
  EXPECT_TRUE(of_constant(Type::kI64, int64_t{1} << 40).ok());
  EXPECT_TRUE(of_constant(Type::kF32, 0xff800000).ok());
  EXPECT_TRUE(of_constant(Type::kF32, -1).ok());
  for (const auto& [type, payload] :
       {std::pair{Type::kI1, int64_t{2}}, {Type::kI32, int64_t{1} << 31}, {Type::kF32, int64_t{1} << 32}}) {
    const Status status = of_constant(type, payload);
    ASSERT_FALSE(status.ok()) << to_string(type);
    EXPECT_NE(status.error().message.find("does not fit"), std::string::npos) << status.error().message;
  }
  EXPECT_FALSE(of_constant(static_cast<Type>(99), 0).ok());
}

// They would be read beyond the ends of tables.
TEST(Builder, RefusesOperationsThatDoNotExist) {
  for (const int op : {kOpCount, 255}) {
    Program program{.kind = ProgramKind::kMaskMod};
    program.nodes = {{.op = static_cast<Op>(op), .type = Type::kI1, .operands = {}}};
    const Status status = score::verify(program);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("node 0 has operation"), std::string::npos) << status.error().message;
  }
}

TEST(Builder, RefusesCapturedTensorsOfDtypesThatDoNotExist) {
  for (const int dtype : {static_cast<int>(DType::kF64) + 1, 255}) {
    Program program{.kind = ProgramKind::kMaskMod, .captures = {{.name = "t", .dtype = static_cast<DType>(dtype)}}};
    program.nodes = {{.op = Op::k_load, .type = Type::kI32, .operands = {}},
                     {.op = Op::k_to_i1, .type = Type::kI1, .operands = {0}}};
    program.result = 1;
    const Status status = score::verify(program);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("`t` has dtype"), std::string::npos) << status.error().message;
  }
}

}  // namespace
}  // namespace flashlift
