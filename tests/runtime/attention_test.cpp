#include "flashlift/attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>

#include "problem/check.h"
#include "support/tensors.h"

namespace flashlift {
namespace {

using testing::OwnedArguments;
using testing::Random;

Problem problem_of(const std::string& text) {
  Result<Problem> problem = parse_problem(text);
  EXPECT_TRUE(problem.ok()) << problem.error().message;
  return *problem;
}

class Runs : public ::testing::TestWithParam<const char*> {};

TEST_P(Runs, AgreesWithTheOracle) {
  const Problem problem = problem_of(GetParam());
  Random random(1);
  OwnedArguments arguments = testing::dense_arguments(problem, random);
  const Result<Attention> attention = Attention::compile(problem);
  ASSERT_TRUE(attention.ok()) << attention.error().message;
  const Status status = attention->run(arguments.views);
  ASSERT_TRUE(status.ok()) << status.error().message;
  const Result<problem::Judgement> report = problem::check_output(problem, arguments.views);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->ok) << report->reason;
}

INSTANTIATE_TEST_SUITE_P(Problems, Runs,
                         ::testing::Values("attn h1 s1 d1 f32",
                                           "attn b2 hq4 hkv2 sq20 skv70 d16 key_lengths causal=bottom_right lse",
                                           "attn b2 h2 s70 d16 segment_ids mask=bool bias=f32 row_max dropout=0.1",
                                           "attn b2 h2 s70 d16 bf16 mask=i32 bias=bf16 logits=bf16 softcap=20",
                                           "attn b2 hq8 hkv2 sq1 skv96 d64 page_size=16 key_lengths sinks=1",
                                           "attn hq4 hkv2 s150 d16 cu_seqlens causal alibi lse",
                                           "attn b2 h2 sq90 skv150 d16 bf16 cu_seqlens causal=bottom_right window=30",
                                           "attn h2 s17 d5 f32 lse", "attn b2 hq4 hkv2 sq70 skv300 d64 f32 causal lse",
                                           "attn h2 s300 d80 bf16 softcap=30", "attn h2 s200 d128 f16 alibi causal",
                                           "attn hq8 hkv2 sq1 skv3000 d128 f32 lse",
                                           "attn hq8 hkv2 sq2 skv3000 d72 bf16 causal=bottom_right dropout=0.2",
                                           // Split by keys, of which a mask leaves few.
                                           "attn hq8 hkv2 sq1 skv4096 d64 bf16 page_size=16 key_lengths lse",
                                           "attn hq8 hkv2 sq1 skv5000 d64 f32 causal=bottom_right window=300 sinks=1",
                                           "attn hq4 hkv1 sq3 skv4100 d40 f32 causal=bottom_right documents=5 lse",
                                           "attn h2 sq64 skv0 d16 f32 lse empty_rows=zero",
                                           "attn h2 sq64 skv0 d16 f32 lse empty_rows=uniform",
                                           "attn h2 sq64 skv0 d16 f32 lse empty_rows=nan", "attn h2 sq0 skv9 d16 f32",
                                           "attn h2 sq200 skv100 d16 f32 causal=bottom_right lse empty_rows=uniform",
                                           "attn h1 sq600 skv700 dqk256 dv192 f32 window=64 sinks=2 lse",
                                           "attn h2 s333 d64 f32 unnormalized lse causal sinks=1"));

TEST(Attention, AskedForByNameRunsOrSaysWhyNot) {
  const Problem problem = problem_of("attn h1 s8 d8 f32");
  const Result<Attention> portable = Attention::compile(problem, {.implementation = "cpu_portable"});
  ASSERT_TRUE(portable.ok()) << portable.error().message;
  EXPECT_EQ(portable->implementation(), "cpu_portable");
  ASSERT_FALSE(portable->considerations().empty());
  EXPECT_TRUE(portable->considerations().back().accepted);
  EXPECT_EQ(portable->backward_considerations().back().implementation, "cpu_portable");
  EXPECT_TRUE(portable->backward_considerations().back().accepted);
  const Result<Attention> none = Attention::compile(problem, {.implementation = "cpu_abacus"});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(none.error().message.find("no implementation named cpu_abacus: expected one of cpu_amx, "),
            std::string::npos)
      << none.error().message;
}

TEST(Attention, OptionsThatDoNotExistAreErrors) {
  const auto refusal = [](const CompileOptions& options) {
    const Result<Attention> attention = Attention::compile(problem_of("attn h1 s8 d8 f32"), options);
    return attention.ok() ? std::string("compiled") : attention.error().message;
  };
  for (const int ordinal : {5, -1}) {
    EXPECT_EQ(refusal({.device_ordinal = ordinal}),
              fmt::format("the device is CPU {}; expected CPU 0, which stands for all of them", ordinal));
  }
  EXPECT_EQ(refusal({.device = static_cast<DeviceKind>(7)}), "device 7 is unknown: expected DeviceKind::kCpu or kCuda");
  EXPECT_EQ(refusal({.tuning = static_cast<TuningPolicy>(9)}),
            "tuning policy 9 is unknown: expected TuningPolicy::kFromEnvironment, kOff, kRead or kWrite");
}

TEST(Attention, WrongArgumentsAreErrorsAndWriteNothing) {
  const Problem problem = problem_of("attn h1 s8 d8 f32");
  Random random(1);
  OwnedArguments arguments = testing::dense_arguments(problem, random);
  const Result<Attention> attention = Attention::compile(problem);
  ASSERT_TRUE(attention.ok());
  const float before = static_cast<float*>(arguments.views.out.data)[0];
  arguments.views.k.sizes[3] = 7;
  const Status status = attention->run(arguments.views);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(static_cast<float*>(arguments.views.out.data)[0], before);
}

// A wrong size would be read at clamped indices: the results would be wrong without an error.
TEST(Attention, CapturedTensorsOfNamedFeaturesMustFitTheCall) {
  struct Wrong {
    const char* problem;
    const char* capture;
    int dimension;
    int64_t size;
    const char* message;
    bool broadcasts;
  };
  for (const Wrong& wrong :
       {Wrong{"attn b2 h4 sq8 skv12 d8 mask=bool", "mask", 3, 11, "expected bool[2,4,8,12]", true},
        Wrong{"attn b2 h4 sq8 skv12 d8 bias=f32", "bias", 1, 2, "being [1|batch,1|heads,1|q_len,1|kv_len]", true},
        Wrong{"attn b2 h4 sq8 skv12 d8 segment_ids", "kv_segments", 1, 8, "`kv_segments`: expected i32[2,12]", false},
        Wrong{"attn b2 h4 sq8 skv12 d8 segment_ids", "q_segments", 0, 3, "`q_segments`: expected i32[2,8]", true},
        Wrong{"attn b2 h4 sq8 skv12 d8 key_lengths", "key_lengths", 0, 3, "`key_lengths`: expected i32[2]", true},
        Wrong{"attn h4 sq8 skv12 d8 cu_seqlens", "cu_seqlens_kv", 0, 4, "`cu_seqlens_kv`: expected i32[5]", false}}) {
    const Problem problem = problem_of(wrong.problem);
    Random random(1);
    OwnedArguments arguments = testing::dense_arguments(problem, random);
    const Result<Attention> attention = Attention::compile(problem);
    ASSERT_TRUE(attention.ok());
    ASSERT_TRUE(attention->run(arguments.views).ok()) << wrong.problem;
    size_t index = 0;
    while (problem.captures[index].name != wrong.capture) {
      ++index;
    }
    int64_t& size = arguments.views.captures[index].sizes[wrong.dimension];
    size = wrong.size;
    const Status status = attention->run(arguments.views);
    ASSERT_FALSE(status.ok()) << wrong.problem;
    EXPECT_EQ(status.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_NE(status.error().message.find(wrong.message), std::string::npos) << status.error().message;
    size = 1;
    EXPECT_EQ(attention->run(arguments.views).ok(), wrong.broadcasts) << wrong.problem;
  }
}

TEST(Attention, SinksOfAllHeadsAreThoseOfEach) {
  const Problem problem = problem_of("attn b2 h3 s40 d16 sinks=2 lse");
  const Result<Attention> attention = Attention::compile(problem);
  ASSERT_TRUE(attention.ok());
  Random random(1);
  OwnedArguments arguments = testing::dense_arguments(problem, random);
  float values[] = {0.5f, -1.0f};
  TensorView of_each = dense_view(values, DType::kF32, std::vector<int64_t>{3, 2});
  of_each.strides[0] = 0;
  const size_t bytes = static_cast<size_t>(arguments.views.out.element_count()) * sizeof(float);
  std::vector<std::byte> first(bytes);
  arguments.views.sinks = of_each;
  ASSERT_TRUE(attention->run(arguments.views).ok());
  std::memcpy(first.data(), arguments.views.out.data, bytes);
  arguments.views.sinks = dense_view(values, DType::kF32, std::vector<int64_t>{2});
  ASSERT_TRUE(attention->run(arguments.views).ok());
  EXPECT_EQ(std::memcmp(first.data(), arguments.views.out.data, bytes), 0);
  arguments.views.sinks = dense_view(values, DType::kF32, std::vector<int64_t>{1});
  const Status status = attention->run(arguments.views);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("sinks: expected f32[2], got f32[1]"), std::string::npos)
      << status.error().message;
}

TEST(Attention, LengthsMayDifferFromTheCompiledProblem) {
  const Result<Attention> attention = Attention::compile(problem_of("attn h2 s8 d8 f32 causal"));
  ASSERT_TRUE(attention.ok());
  const Problem longer = problem_of("attn b3 h2 sq50 skv190 d8 f32 causal");
  Random random(1);
  OwnedArguments arguments = testing::dense_arguments(longer, random);
  ASSERT_TRUE(attention->run(arguments.views).ok());
  EXPECT_TRUE(problem::check_output(longer, arguments.views)->ok);
}

// Counts its threads, and runs the bodies on this thread in descending order.
class BackwardsExecutor : public Executor {
 public:
  explicit BackwardsExecutor(int concurrency) : concurrency_(concurrency) {}
  int concurrency() const override { return concurrency_; }
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override {
    for (int64_t i = count; i-- > 0;) {
      body(i);
    }
    ++calls;
  }
  int calls = 0;

 private:
  int concurrency_;
};

TEST(Attention, SameBitsForAnyThreadCountAndExecutor) {
  for (const char* text :
       {"attn hq4 hkv2 s700 d40 f32 causal lse", "attn hq8 hkv2 sq2 skv5000 d64 f32 softcap=20 lse"}) {
    const Problem problem = problem_of(text);
    Random random(1);
    OwnedArguments arguments = testing::dense_arguments(problem, random);
    const Result<Attention> attention = Attention::compile(problem);
    ASSERT_TRUE(attention.ok());
    ASSERT_TRUE(attention->run(arguments.views).ok());
    const size_t bytes = static_cast<size_t>(arguments.views.out.element_count()) * sizeof(float);
    std::vector<std::byte> first(bytes);
    std::memcpy(first.data(), arguments.views.out.data, bytes);
    for (const int concurrency : {1, 2, 3, 16, 100}) {
      BackwardsExecutor executor(concurrency);
      std::memset(arguments.views.out.data, 0, bytes);
      ASSERT_TRUE(attention->run(arguments.views, {.executor = &executor}).ok());
      EXPECT_EQ(std::memcmp(first.data(), arguments.views.out.data, bytes), 0) << text << " with " << concurrency;
      EXPECT_EQ(executor.calls, concurrency > 1 ? 1 : 0);
    }
  }
}

TEST(Attention, MaskedKeysTakeNoPartEvenIfTheirValuesAreNan) {
  const Problem problem = problem_of("attn h1 sq40 skv200 d16 f32 mask_mod() { %0 = lt kv, 130; return %0 }");
  Random random(1);
  OwnedArguments arguments = testing::dense_arguments(problem, random);
  for (int64_t i = 130 * 16; i < 200 * 16; ++i) {
    static_cast<float*>(arguments.views.v.data)[i] = NAN;
    static_cast<float*>(arguments.views.k.data)[i] = NAN;
  }
  const Result<Attention> attention = Attention::compile(problem);
  ASSERT_TRUE(attention.ok());
  ASSERT_TRUE(attention->run(arguments.views).ok());
  const Result<problem::Judgement> report = problem::check_output(problem, arguments.views);
  EXPECT_TRUE(report->ok) << report->reason;
}

// The probability of a kept key may be 0 in f32, too, like that of a dropped one.
TEST(Attention, OnlyDroppedKeysTakeNoPartIfTheirValuesAreNan) {
  for (const std::string words : {"attn h1 sq40 skv200 d16 f32 dropout=0.5", "attn h1 sq40 skv200 d16 f32 keep_mask"}) {
    const Problem problem =
        problem_of(words + " score_mod() { %0 = eq kv, 7; %1 = select %0, -200.0, score; return %1 }");
    Random random(1);
    OwnedArguments arguments = testing::dense_arguments(problem, random);
    static_cast<float*>(arguments.views.v.data)[7 * 16] = NAN;
    const Result<Attention> attention = Attention::compile(problem);
    ASSERT_TRUE(attention.ok());
    ASSERT_TRUE(attention->run(arguments.views).ok());
    const Result<problem::Judgement> report = problem::check_output(problem, arguments.views);
    EXPECT_TRUE(report->ok) << words << ": " << report->reason;
  }
}

TEST(Attention, ManyThreadsMayCompileAndRunTheSameProblem) {
  const Problem problem = problem_of("attn h2 s150 d32 f32 softcap=7 causal");
  std::vector<std::vector<float>> outputs(8);
  std::vector<std::thread> threads;
  for (std::vector<float>& output : outputs) {
    threads.emplace_back([&problem, &output] {
      Random random(1);
      OwnedArguments arguments = testing::dense_arguments(problem, random);
      const Result<Attention> attention = Attention::compile(problem);
      for (int i = 0; i < 5 && attention.ok() && attention->run(arguments.views).ok(); ++i) {
        const float* out = static_cast<float*>(arguments.views.out.data);
        output.assign(out, out + arguments.views.out.element_count());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_FALSE(outputs[0].empty());
  for (const std::vector<float>& output : outputs) {
    EXPECT_EQ(output, outputs[0]);
  }
}

TEST(Attention, MemoryIsThatOfOneThreadOrMore) {
  const Result<Attention> attention = Attention::compile(problem_of("attn h2 s64 d16 f32"));
  ASSERT_TRUE(attention.ok()) << attention.error().message;
  EXPECT_GT(attention->workspace_bytes(1), 0);
  EXPECT_GT(attention->backward_workspace_bytes(1), 0);
  for (const int none : {0, -3}) {
    EXPECT_EQ(attention->workspace_bytes(none), -1);
    EXPECT_EQ(attention->backward_workspace_bytes(none), -1);
  }
}

TEST(Attention, GeneratedCodeCanBeRead) {
  const Result<Attention> attention = Attention::compile(problem_of("attn h1 s8 d8 f32 softcap=5"));
  ASSERT_TRUE(attention.ok());
  const Result<std::string> code = attention->code();
  ASSERT_TRUE(code.ok());
  const bool compiled = attention->considerations().back().reason.ends_with("programs compiled by LLVM");
  EXPECT_NE(code->find(compiled ? "flashlift_score_unmasked" : "interpreted"), std::string::npos) << *code;
  const Result<Attention> portable =
      Attention::compile(problem_of("attn h1 s8 d8 f32 softcap=5"), {.implementation = "cpu_portable"});
  ASSERT_TRUE(portable.ok());
  EXPECT_EQ(*portable->code(), "; programs are interpreted: nothing is generated\n");
}

// Their compiled code would need too much of a thread's stack.
TEST(Attention, ProgramsOfThousandsOfNodesAreInterpretedAndSaySo) {
  constexpr int kSteps = 2700;
  std::string score = "%0 = tanh score; ";
  std::string mask = "%0 = add q, kv; ";
  for (int i = 1; i < kSteps; ++i) {
    const std::string step = "%" + std::to_string(i) + " = mul %" + std::to_string(i - 1);
    score += step + ", score; ";
    mask += step + ", kv; ";
  }
  const std::string last = std::to_string(kSteps - 1);
  const Result<Attention> attention = Attention::compile(
      problem_of("attn h1 s8 d8 score_mod() { " + score + "return %" + last + " } mask_mod() { " + mask + "%" +
                 std::to_string(kSteps) + " = lt %" + last + ", 5; return %" + std::to_string(kSteps) + " }"),
      {.implementation = "cpu_avx512"});
  if (!attention.ok()) {  // the processor lacks it
    ASSERT_EQ(attention.error().kind, ErrorKind::kUnsupported) << attention.error().message;
    return;
  }
  const std::string& reason = attention->considerations().back().reason;
  EXPECT_TRUE(reason.ends_with("programs interpreted")) << reason;
  EXPECT_EQ(*attention->code(), "; programs are interpreted: nothing is generated\n");
}

}  // namespace
}  // namespace flashlift
