#include "plan/cuda_lists.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/emit/tile_classes.h"
#include "plan/implementation.h"

namespace flashlift::plan {
namespace {

using cuda::LengthClass;

cuda::Device device_of(int architecture) {
  return {.name = "a device", .architecture = architecture, .multiprocessors = 132};
}

Problem problem_of(const std::string& text) {
  const Result<Problem> problem = parse_problem(text);
  EXPECT_TRUE(problem.ok()) << problem.error().message;
  return *problem;
}

Result<Answers<CudaForward>> ask_forward(const Problem& problem, int architecture, const std::string& requested = "") {
  const LengthClass length =
      cuda::length_class(problem, cuda::sizes_of(problem), device_of(architecture).multiprocessors);
  return evaluate(cuda_forward_list(), requested, "CUDA's forward pass", [&](const CudaForward& row, bool by_name) {
    return refusal(row, problem, length, device_of(architecture), by_name);
  });
}

std::string first_forward(const std::string& text, int architecture, const std::string& requested = "") {
  const Result<Answers<CudaForward>> answers = ask_forward(problem_of(text), architecture, requested);
  if (!answers.ok()) {
    return answers.error().message;
  }
  const CudaForward* row = first_of(*answers);
  return row == nullptr ? reasons_of(*answers) : row->name();
}

TEST(CudaForwardList, GivesEachDeviceAndLengthItsKernel) {
  const std::string few = "attn hq8 hkv2 sq312 skv4096 d128 bf16";   // 2 units of 78 for a round of 132 tiles
  const std::string many = "attn hq8 hkv2 sq320 skv4096 d128 bf16";  // of 80
  EXPECT_EQ(first_forward(few, 90), "cuda_sm90_decode");
  EXPECT_EQ(first_forward(many, 90), "cuda_sm90");
  EXPECT_EQ(first_forward("attn h1 sq1 skv64 d64 f32", 90), "cuda_decode");
  EXPECT_EQ(first_forward("attn h1 s512 d64 f32", 90), "cuda_sm80");
  EXPECT_EQ(first_forward(few, 80), "cuda_decode");
  EXPECT_EQ(first_forward(many, 80), "cuda_sm80");
  EXPECT_EQ(first_forward(few, 100), "cuda_sm90_decode");
  EXPECT_EQ(first_forward(many, 100), "cuda_sm80");
}

TEST(CudaForwardList, SaysWhyEachImplementationRefuses) {
  const std::string reasons = first_forward("attn h1 s512 d64 bf16", 75);
  EXPECT_NE(reasons.find("cuda_sm90: a device has compute capability 7.5, expected 9.0"), std::string::npos) << reasons;
  EXPECT_NE(reasons.find("cuda_sm80: a device has compute capability 7.5, expected 8.0 or newer"), std::string::npos)
      << reasons;
}

TEST(CudaForwardList, WhatIsAskedForByNameRunsCallsOfAnyLengthOrSaysWhyNot) {
  const std::string many = "attn h8 s4096 d128 bf16";
  EXPECT_EQ(first_forward(many, 90, "cuda_decode"), "cuda_decode");
  EXPECT_EQ(first_forward(many, 90, "cuda_sm80"), "cuda_sm80");
  EXPECT_EQ(first_forward("attn h8 sq1 skv64 d128 bf16", 90, "cuda_sm90"), "cuda_sm90");
  const std::string wrong = first_forward(many, 80, "cuda_sm90");
  EXPECT_NE(wrong.find("cuda_sm90: a device has compute capability 8.0, expected 9.0"), std::string::npos) << wrong;
  EXPECT_NE(wrong.find("cuda_sm80: another implementation, cuda_sm90, was requested by name"), std::string::npos)
      << wrong;
  const std::string unknown = first_forward(many, 90, "cuda_sm99");
  EXPECT_EQ(unknown,
            "CUDA's forward pass has no implementation named cuda_sm99: expected one of cuda_sm90_decode, cuda_decode, "
            "cuda_sm90, cuda_sm80");
}

TEST(CudaForwardList, LengthsFallIntoClasses) {
  EXPECT_EQ(cuda::length_class(1024), LengthClass::kUpTo1024);
  EXPECT_EQ(cuda::length_class(1025), LengthClass::kUpTo2048);
  EXPECT_EQ(cuda::length_class(2049), LengthClass::kUpTo4096);
  EXPECT_EQ(cuda::length_class(4097), LengthClass::kLonger);
}

// The faster kernels on an H200, by docs/lessons/cuda_decode.md.
TEST(CudaForwardList, FewRowsAreFewUnitsForTheTilesThatTheyReplace) {
  constexpr int kH200 = 132;
  struct Row {
    const char* heads;
    int64_t batch, q_len, kv_len;
    bool few;
  };
  for (const Row& row : {Row{"hq32 hkv8 d128", 1, 1, 8192, true}, Row{"hq32 hkv8 d128", 1, 64, 8192, true},
                         Row{"hq32 hkv8 d128", 1, 128, 8192, false}, Row{"hq32 hkv8 d128", 8, 16, 4096, true},
                         Row{"hq32 hkv8 d128", 8, 32, 4096, false}, Row{"hq128 hkv1 d128", 1, 1, 8192, true},
                         Row{"hq128 hkv1 d128", 32, 8, 2048, true}, Row{"h32 d128", 1, 64, 8192, true},
                         Row{"h32 d128", 8, 64, 4096, false}, Row{"hq64 hkv8 d128", 32, 16, 2048, true},
                         Row{"hq64 hkv8 d128", 32, 32, 2048, false}, Row{"hq32 hkv8 d64", 1, 128, 8192, true},
                         Row{"hq32 hkv8 d64", 1, 256, 8192, false}, Row{"h32 d128", 256, 1, 64, true},
                         // Many rows of few keys, and calls without any.
                         Row{"hq128 hkv1 d128", 1, 1, 512, false}, Row{"h8 d128", 0, 100, 4096, true},
                         Row{"h8 d128", 1, 0, 4096, true}}) {
    const Problem problem = problem_of(std::string("attn s64 bf16 ") + row.heads);
    const cuda::CallSizes call = {row.batch, row.q_len, row.kv_len};
    EXPECT_EQ(cuda::has_few_rows(problem, call, kH200), row.few) << row.heads << " " << row.batch << " " << row.q_len;
    // What is compiled in advance has the class of every call.
    const std::vector<LengthClass> all = cuda::length_classes(problem, call);
    EXPECT_NE(std::ranges::find(all, cuda::length_class(problem, call, kH200)), all.end())
        << row.heads << " " << row.batch << " " << row.q_len;
  }
}

TEST(TileClasses, FewHeadsUseSmallerTiles) {
  constexpr int kH100 = 132;
  struct Row {
    const char* text;
    int64_t batch, q_len;
    LengthClass expected;
  };
  for (const Row& row : {
           // 176 tiles of 192 queries are two rounds; 256 tiles of 128 are two as well.
           Row{"attn h8 s4096 d128 bf16", 1, 4096, LengthClass::kUpTo2048},
           Row{"attn h8 s4096 d128 bf16 softcap=5", 1, 4096, LengthClass::kUpTo2048},
           Row{"attn h8 s4096 d96 bf16", 1, 4096, LengthClass::kUpTo2048},
           // 176 tiles again, and 128 of 256 queries.
           Row{"attn h16 s2048 d64 bf16", 1, 2048, LengthClass::kUpTo1024},
           // Many rounds, or the last one is full.
           Row{"attn h8 s4096 d128 bf16", 8, 4096, LengthClass::kUpTo4096},
           Row{"attn h6 s4096 d128 bf16", 1, 4096, LengthClass::kUpTo4096},
           Row{"attn h16 s16384 d128 bf16", 1, 16384, LengthClass::kLonger},
           // Masks, kernels that have the same tiles for all lengths, and few queries.
           Row{"attn h8 s4096 d128 bf16 causal", 1, 4096, LengthClass::kUpTo4096},
           Row{"attn h8 s4096 d256 bf16", 1, 4096, LengthClass::kUpTo4096},
           Row{"attn h8 s4096 d128 f32", 1, 4096, LengthClass::kUpTo4096},
           Row{"attn h8 s4096 d128 bf16", 1, 60, LengthClass::kUpTo1024},
           Row{"attn h8 s4096 d128 bf16", 0, 4096, LengthClass::kUpTo4096},
       }) {
    EXPECT_EQ(cuda::TileClasses(problem_of(row.text)).of(row.batch, row.q_len, kH100), row.expected)
        << row.text << " " << row.batch << " " << row.q_len;
  }
  // What is compiled in advance has all that a call may need.
  using List = std::vector<LengthClass>;
  EXPECT_EQ(cuda::TileClasses(problem_of("attn h8 s64 d128 bf16")).candidates(4096),
            (List{LengthClass::kUpTo4096, LengthClass::kUpTo2048}));
  EXPECT_EQ(cuda::TileClasses(problem_of("attn h8 s64 d128 bf16 causal")).candidates(4096),
            List{LengthClass::kUpTo4096});
  EXPECT_EQ(cuda::TileClasses(problem_of("attn h8 s64 d128 bf16")).candidates(10), List{LengthClass::kUpTo1024});
}

TEST(CudaBackwardList, EndsInAnImplementationForEveryArchitectureFromAmpereOn) {
  const Problem problem = problem_of("attn h8 s512 d256 f32 causal");
  for (const int architecture : {80, 86, 89, 90, 100, 120}) {
    EXPECT_EQ(refusal(cuda_backward_list().back(), problem, device_of(architecture)), std::nullopt) << architecture;
  }
  EXPECT_EQ(refusal(cuda_backward_list().back(), problem, device_of(75)),
            "a device has compute capability 7.5, expected 8.0 or newer");
}

TEST(CudaBackwardList, HopperComesFirst) {
  const Problem problem = problem_of("attn h8 s512 d128 bf16 causal lse");
  const CudaBackward& hopper = cuda_backward_list().front();
  ASSERT_STREQ(hopper.name(), "cuda_sm90");
  EXPECT_EQ(refusal(hopper, problem, device_of(90)), std::nullopt);
  const std::optional<std::string> reason = refusal(hopper, problem_of("attn h8 s512 d128 f32 lse"), device_of(90));
  ASSERT_TRUE(reason.has_value());
  EXPECT_NE(reason->find("bf16 and f16 only"), std::string::npos) << *reason;
}

// Every front end calls this before it runs the forward pass of a gradient.
TEST(CudaBackwardList, SaysWhichBackwardPassesReadTheResidual) {
  const CudaBackward& hopper = cuda_backward_list().front();
  const CudaBackward& portable = cuda_backward_list().back();
  const auto reads = [](const CudaBackward& row, const std::string& text, int architecture) {
    return reads_residual(row, problem_of("attn h8 s512 " + text), device_of(architecture));
  };
  for (const int architecture : {80, 86, 89, 90, 100, 120}) {
    EXPECT_TRUE(reads(portable, "d128 bf16 causal lse", architecture)) << architecture;
    EXPECT_TRUE(reads(portable, "d64 f16 softcap=30 lse", architecture)) << architecture;
    EXPECT_TRUE(reads(portable, "d128 bf16 lse residual", architecture)) << architecture;  // has one already
    EXPECT_FALSE(reads(portable, "d128 f32 causal lse", architecture)) << architecture;
    EXPECT_FALSE(reads(portable, "d128 bf16 out=f32 lse", architecture)) << architecture;  // nothing is rounded
    EXPECT_FALSE(reads(portable, "d128 bf16 causal", architecture)) << architecture;       // no lse
    EXPECT_TRUE(reads(portable, "d64 bf16 bias=f32 lse", architecture)) << architecture;
    EXPECT_FALSE(reads(portable, "d64 bf16 lse empty_rows=uniform", architecture)) << architecture;
    const bool has_memory = architecture == 80 || architecture == 90 || architecture == 100;
    EXPECT_EQ(reads(portable, "d256 bf16 lse", architecture), has_memory) << architecture;
  }
  EXPECT_TRUE(reads(hopper, "d128 bf16 causal lse", 90));
  // Without it, the kernel for queries of wide heads repeats most tiles.
  for (const char* wide :
       {"d256 bf16 causal lse", "d192 f16 softcap=30 lse", "d192 bf16 lse", "dqk192 dv128 bf16 lse"}) {
    EXPECT_TRUE(reads(hopper, wide, 90)) << wide;
  }
  EXPECT_FALSE(reads(hopper, "dqk64 dv256 bf16 lse", 90));
  EXPECT_FALSE(reads(hopper, "d256 bf16 out=f32 lse", 90));
  EXPECT_TRUE(reads(hopper, "d64 bf16 bias=f32 lse", 90));
}

// `explain` prints these reasons.
TEST(CudaBackwardList, SaysWhyNotOneKernel) {
  using cuda::BackwardKind;
  const auto described = [](const std::string& text, int architecture, BackwardKind kind = BackwardKind::kPortable) {
    const auto config = cuda::choose_backward_config(problem_of("attn h8 s512 " + text), kind, architecture);
    return config.ok() ? cuda::describe(*config) : config.error().message;
  };
  EXPECT_TRUE(described("d128 bf16 causal lse residual", 80).starts_with("fused "));
  EXPECT_TRUE(described("d128 bf16 causal lse out=f32", 80).starts_with("fused "));
  EXPECT_NE(described("d128 bf16 causal lse", 80).find("not one kernel: it takes <d_out, out> from an output"),
            std::string::npos);
  EXPECT_NE(described("d128 bf16 lse", 90, BackwardKind::kHopper).find("not one kernel: it takes <d_out, out>"),
            std::string::npos);
  EXPECT_TRUE(described("d192 bf16 lse residual", 90, BackwardKind::kHopper).starts_with("sm_90a, fused "));
  EXPECT_NE(described("d192 bf16 softcap=30 causal lse residual", 90, BackwardKind::kHopper)
                .find("not one kernel: for rows of 192 and 192 columns it has no score_mod"),
            std::string::npos);
  EXPECT_NE(described("d256 bf16 lse residual", 90, BackwardKind::kHopper).find("not one kernel: rows of 256"),
            std::string::npos);
  EXPECT_NE(described("d256 bf16 lse residual", 86).find("not one kernel: rows of 256 and 256 columns fit neither"),
            std::string::npos);
}

TEST(CudaBackwardList, WhatItDoesNotHaveIsAnErrorThatNamesWhatItHas) {
  const Result<Answers<CudaBackward>> answers =
      evaluate(cuda_backward_list(), "cuda_decode", "CUDA's backward pass",
               [](const CudaBackward&, bool) { return std::optional<std::string>(); });
  ASSERT_FALSE(answers.ok());
  EXPECT_NE(answers.error().message.find("no implementation named cuda_decode"), std::string::npos);
  EXPECT_NE(answers.error().message.find("cuda_sm80"), std::string::npos);
}

}  // namespace
}  // namespace flashlift::plan
