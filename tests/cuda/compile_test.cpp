// Every kernel configuration compiles without a GPU, with few or no spills and without serialised products.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "cuda/compile/nvrtc.h"
#include "cuda/emit/capture_loads.h"
#include "cuda/emit/kernel_source.h"
#include "flashlift/problem.h"

namespace flashlift::cuda {
namespace {

Problem problem_of(const std::string& text) {
  Result<Problem> problem = parse_problem(text);
  EXPECT_TRUE(problem.ok()) << text << ": " << problem.error().message;
  return *problem;
}

// Expects that ptxas reports on each of a source's kernels, that it serialised no products, and that it spilled at most
// `bytes`. Without its report, neither would be known.
void expect_spills_at_most(int64_t bytes, const CompiledKernel& kernel, const std::string& configuration) {
  static const std::regex pattern("([0-9]+) bytes spill stores");
  int64_t total = 0;
  int reports = 0;
  for (std::sregex_iterator match(kernel.log.begin(), kernel.log.end(), pattern), end; match != end; ++match) {
    total += std::stoll((*match)[1]);
    ++reports;
  }
  EXPECT_GT(reports, 0) << configuration << ": ptxas gave no report\n" << kernel.log;
  EXPECT_LE(total, bytes) << configuration << "\n" << kernel.log;
  EXPECT_EQ(kernel.log.find("serialized"), std::string::npos) << configuration << "\n" << kernel.log;
}

class HopperCompiles : public ::testing::TestWithParam<std::string> {};

TEST_P(HopperCompiles, WithoutSpillsOrSerialisedProducts) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::get();
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.error().message;
  const Problem problem = problem_of(GetParam());
  const Result<ForwardConfig> config = choose_hopper_config(problem, length_class(problem.q_len));
  ASSERT_TRUE(config.ok()) << config.error().message;
  const Result<CompiledKernel> kernel = (*nvrtc)->compile(forward_source(problem, *config));
  ASSERT_TRUE(kernel.ok()) << kernel.error().message;
  EXPECT_EQ(kernel->log.find("setmaxnreg ignored"), std::string::npos) << kernel->log;
  expect_spills_at_most(0, *kernel, describe(*config));
}

std::vector<std::string> hopper_problems() {
  std::vector<std::string> problems;
  for (const char* dims : {"d64", "d96", "d128", "d192", "d256", "dqk192 dv128", "d40", "d80", "dqk64 dv256"}) {
    for (const char* features : {"bf16", "f16 causal softcap=30"}) {
      problems.push_back(std::string("attn h2 s512 ") + dims + " " + features);
    }
  }
  for (const char* features :
       {"causal", "alibi window=100", "sinks=2 unnormalized", "out=f32 lse causal=bottom_right",
        "empty_rows=nan scale=-1", "dropout=0.1 keep_mask causal", "empty_rows=uniform causal prefix=9",
        "dropout=0.1 row_max causal", "score_mod() { %0 = lt q, kv; %1 = select %0, -inf, score; return %1 }",
        "score_mod(mask: f32[?,?]) { %0 = load mask[q, kv]; %1 = add score, %0; return %1 }",
        "softcap=30 score_mod(mask: bf16[?,?]) { %0 = load mask[q, kv]; %1 = add score, %0; return %1 }"}) {
    problems.push_back(std::string("attn h2 s512 d128 bf16 ") + features);
  }
  for (const char* features : {"d64 bf16 causal alibi", "d192 bf16 causal lse", "d256 f16 causal"}) {
    problems.push_back(std::string("attn h2 s1024 ") + features);
  }
  // Lengths also choose tiles.
  for (const char* features :
       {"d128 bf16", "d128 bf16 softcap=30", "d128 bf16 alibi", "d64 bf16 lse", "d64 bf16 causal",
        "d128 bf16 causal lse", "d96 bf16 causal", "d96 bf16", "d128 bf16 causal window=1024", "d256 bf16 causal",
        "d128 bf16 mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; %2 = eq %0, %1; return %2 }",
        "d128 bf16 score_mod(t: f32[?]) { %0 = sub q, kv; %1 = load t[%0]; %2 = add score, %1; return %2 }"}) {
    problems.push_back(std::string("attn h2 s8192 ") + features);
  }
  return problems;
}

// For the oldest and the newest architecture: those in between compile the same code.
template <typename Choose>
void expect_compiled(const Problem& problem, Choose choose, std::initializer_list<int> architectures,
                     int64_t spills = 0) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::get();
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.error().message;
  for (const int architecture : architectures) {
    const Result<ForwardConfig> config = choose(problem, architecture);
    ASSERT_TRUE(config.ok()) << config.error().message;
    const Result<CompiledKernel> kernel = (*nvrtc)->compile(forward_source(problem, *config));
    ASSERT_TRUE(kernel.ok()) << kernel.error().message;
    expect_spills_at_most(spills, *kernel, describe(*config));
  }
}

// Spilled: what stays in memory during the loop over tiles, and what a program or dropout needs beside two fragments'
// sums. These tiles are faster all the same (docs/lessons).
constexpr int64_t kPortableSpills = 128;

class PortableConfigurations : public ::testing::TestWithParam<std::string> {};

TEST_P(PortableConfigurations, CompileForTheOldestAndTheNewestArchitecture) {
  expect_compiled(problem_of(GetParam()), choose_portable_config, {80, 100}, kPortableSpills);
}

// Architectures 86, 89 and 120 have less shared memory than the others, and therefore other tiles.
TEST(PortableCompiles, ForEveryArchitecture) {
  expect_compiled(problem_of("attn h2 s512 d128 bf16 causal"), choose_portable_config, {86, 89, 90, 120},
                  kPortableSpills);
}

// The tiles of docs/lessons/cuda_portable.md, within each architecture's shared memory.
TEST(PortableTiles, FitTheSharedMemory) {
  struct Row {
    const char* features;
    const char* tiles[3];  // of 80, 86, 90
  };
  for (const Row& row :
       {Row{"d64 bf16", {"128x128", "128x128", "128x128"}}, Row{"d96 bf16", {"128x96", "128x64", "128x96"}},
        Row{"d96 bf16 causal", {"128x64", "128x64", "128x64"}}, Row{"d128 bf16 causal", {"128x64", "128x32", "128x64"}},
        Row{"d192 bf16 causal", {"64x64", "128x64", "64x64"}}, Row{"d256 bf16 causal", {"128x64", "128x32", "64x64"}},
        Row{"d256 bf16 dropout=0.1", {"128x64", "128x32", "64x64"}}}) {
    const Problem problem = problem_of(std::string("attn h2 s512 ") + row.features);
    constexpr int kArchitectures[3][2] = {{80, 164}, {86, 100}, {90, 228}};
    for (int i = 0; i < 3; ++i) {
      const auto [architecture, kibibytes] = kArchitectures[i];
      const Result<ForwardConfig> config = choose_portable_config(problem, architecture);
      ASSERT_TRUE(config.ok()) << row.features << ": " << config.error().message;
      EXPECT_EQ(fmt::format("{}x{}", config->q_tile, config->kv_tile), row.tiles[i])
          << row.features << " sm_" << architecture;
      EXPECT_LE(config->blocks * (config->shared_bytes + 1024), kibibytes * 1024)
          << row.features << " sm_" << architecture;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PortableConfigurations,
                         ::testing::Values("attn h2 s512 d64 bf16", "attn h2 s512 d128 bf16 causal",
                                           "attn h2 s512 d64 bf16 causal", "attn h2 s512 d64 f32 mask=bool bias=f32",
                                           "attn h2 s512 d128 bf16 softcap=30 causal", "attn h2 s512 d192 bf16 causal",
                                           "attn h2 s512 d128 f16 causal lse residual",
                                           "attn h2 s512 d64 bf16 out=f32 lse", "attn h2 s512 d104 f16 causal",
                                           "attn h2 s512 d64 bf16 causal dropout=0.1",
                                           "attn h2 s512 d96 bf16 dropout=0.1",
                                           "attn h2 s512 d256 f16 softcap=30 causal", "attn h2 s512 d40 bf16 alibi",
                                           "attn h2 s512 d64 f32 causal", "attn h2 s512 d128 f32 sinks=1 lse",
                                           "attn h2 s512 d256 f32 window=20 softcap=3",
                                           "attn h2 s512 d128 bf16 causal page_size=16 dropout=0.1",
                                           "attn h2 s512 d128 f32 causal dropout=0.1 keep_mask",
                                           "attn h2 s512 d200 f32 causal page_size=16 dropout=0.1 row_max"));

class DecodeCompiles : public ::testing::TestWithParam<std::string> {};

TEST_P(DecodeCompiles, ForTheOldestAndTheNewestArchitecture) {
  expect_compiled(problem_of(GetParam()), choose_decode_config, {80, 100});
}

INSTANTIATE_TEST_SUITE_P(Configurations, DecodeCompiles,
                         ::testing::Values("attn hq8 hkv2 sq1 skv512 d128 bf16",
                                           "attn hq8 hkv2 sq1 skv512 d128 bf16 causal=bottom_right page_size=16 lse",
                                           "attn hq8 hkv2 sq3 skv512 d256 f16 softcap=30 sinks=1",
                                           "attn h2 sq1 skv512 d64 f32 alibi dropout=0.1 row_max",
                                           "attn hq8 hkv2 sq3 skv512 d128 bf16 causal out=f32 lse",
                                           "attn h2 sq1 skv512 d64 f32 dropout=0.1 keep_mask"));

class BackwardCompiles : public ::testing::TestWithParam<std::string> {};

TEST_P(BackwardCompiles, ForTheOldestAndTheNewestArchitecture) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::get();
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.error().message;
  const Problem problem = problem_of(GetParam());
  std::vector<bool> wants_gradient;
  for (const Capture& capture : problem.captures) {
    wants_gradient.push_back(is_float(capture.dtype));
  }
  // Two accumulators and two tiles of scores leave too few registers: tiles of 64 queries spill some and are faster
  // than those of 32, which do not spill (docs/lessons). A spilled accumulator would be larger than this limit.
  constexpr int64_t kFewBytes = 300;
  for (const int architecture : problem.score_mod ? std::vector{80} : std::vector{80, 90, 100}) {
    const Result<BackwardConfig> config = choose_backward_config(problem, BackwardKind::kPortable, architecture);
    ASSERT_TRUE(config.ok()) << config.error().message;
    Sm80BackwardSources apart = backward_sources(problem, std::get<Sm80Backward>(*config));
    std::vector<KernelSource> sources = {std::move(apart.queries), std::move(apart.keys)};
    if (const std::vector<CaptureLoad> loads = capture_loads(problem, wants_gradient); !loads.empty()) {
      const Result<CaptureConfig> captures = choose_capture_config(problem, *config, loads);
      ASSERT_TRUE(captures.ok()) << captures.error().message;
      sources.push_back(*capture_sources(problem, *captures, loads, wants_gradient).portable);
      sources.push_back(postprocess_source(problem, architecture, true));
    }
    for (const KernelSource& source : sources) {
      const Result<CompiledKernel> kernel = (*nvrtc)->compile(source);
      ASSERT_TRUE(kernel.ok()) << kernel.error().message;
      expect_spills_at_most(kFewBytes, *kernel, source.name + ": " + describe(*config));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, BackwardCompiles,
    ::testing::Values(
        "attn h2 s512 d64 bf16", "attn h2 s512 d128 bf16 causal lse out=f32", "attn h2 s512 d256 f16 softcap=30 causal",
        "attn h2 s512 dqk192 dv128 bf16 alibi sinks=2", "attn h2 s512 d64 f32 causal lse",
        "attn h2 s512 d64 bf16 dropout=0.1 keep_mask lse", "attn h2 s512 d128 f32 sinks=1 lse dropout=0.1",
        "attn h2 s512 d256 f32 window=20 softcap=3", "attn h2 s512 d128 bf16 cu_seqlens causal",
        "attn h2 s512 d128 bf16 causal bias=f32 dropout=0.1 empty_rows=uniform lse",
        "attn h2 s512 d128 bf16 score_mod(t: f32[?], w: bf16[2]) { %0 = sub q, kv; %1 = load t[%0]; %2 = "
        "load w[h]; %3 = mul score, %2; %4 = add %3, %1; return %4 }",
        "attn h2 s512 d128 bf16 score_mod(t: f32[?]) { %0 = add q, kv; %1 = load t[%0]; %2 = add score, "
        "%1; return %2 }",
        "attn h2 s512 d128 bf16 lse residual causal score_mod(t: f32[?], u: f32[?]) { %0 = load t[kv]; %1 = add score, "
        "%0; %2 = sub q, kv; %3 = load u[%2]; %4 = mul %1, %3; return %4 }",
        "attn h2 s512 d128 bf16 score_mod(t: f32[?], u: f32[?, ?]) { %0 = mul score, 0.5; %1 = sub q, kv; "
        "%2 = load t[%1]; %3 = add %0, %2; %4 = load u[q, kv]; %5 = add %3, %4; return %5 }"));

TEST(CaptureLoads, SayOverWhichScoresToSum) {
  const auto sums = [](const std::string& score_mod) {
    const Problem problem = problem_of("attn b2 h2 s64 d64 bf16 score_mod" + score_mod);
    std::string text;
    for (const CaptureLoad& load : capture_loads(problem, std::vector<bool>(problem.captures.size(), true))) {
      constexpr const char* kNames[] = {"row", "key", "diagonal", "element", "plane"};
      text += fmt::format("{}{}", text.empty() ? "" : " ", kNames[static_cast<size_t>(load.sum)]);
    }
    return text;
  };
  EXPECT_EQ(sums("(t: f32[?]) { %0 = load t[h]; %1 = mul score, %0; return %1 }"), "row");
  EXPECT_EQ(sums("(t: f32[?, ?]) { %0 = load t[h, kv]; %1 = add score, %0; return %1 }"), "key");
  EXPECT_EQ(sums("(t: f32[?, ?, ?]) { %0 = load t[kv, 0, q]; %1 = add score, %0; return %1 }"), "plane");
  EXPECT_EQ(sums("(t: f32[?]) { %0 = sub kv, q; %1 = add %0, 63; %2 = abs %1; %3 = load t[%2]; %4 = add score, %3; "
                 "return %4 }"),
            "diagonal");
  EXPECT_EQ(sums("(t: f32[?]) { %0 = mul kv, 2; %1 = sub %0, q; %2 = load t[%1]; %3 = add score, %2; return %3 }"),
            "element");
  EXPECT_EQ(sums("(t: f32[?]) { %0 = to_i32 score; %1 = load t[%0]; %2 = add score, %1; return %2 }"), "element");
  // Threads have two places in a plane, and a warp the scores of one diagonal.
  EXPECT_EQ(sums("(t: f32[?, ?]) { %0 = load t[q, kv]; %1 = load t[kv, q]; %2 = mul score, %0; %3 = add %2, %1; return "
                 "%3 }"),
            "element element");
  EXPECT_EQ(sums("(t: f32[?], u: f32[?]) { %0 = sub q, kv; %1 = load t[%0]; %2 = load u[%0]; %3 = mul score, %1; %4 = "
                 "add %3, %2; return %4 }"),
            "diagonal element");
}

// Sums over whole rows are nearly 0 where the weights of the scores are nearly the same.
TEST(CaptureLoads, SayWhichSumsCancel) {
  const auto cancels = [](const std::string& lengths, const std::string& score_mod) {
    const Problem problem = problem_of("attn b2 h2 " + lengths + " d64 bf16 score_mod" + score_mod);
    const std::vector<CaptureLoad> loads = capture_loads(problem, std::vector<bool>(problem.captures.size(), true));
    return std::ranges::any_of(loads, &CaptureLoad::cancels);
  };
  EXPECT_TRUE(cancels("s64", "(t: f32[2]) { %0 = load t[h]; %1 = add score, %0; return %1 }"));
  EXPECT_FALSE(cancels("s64", "(t: f32[2]) { %0 = load t[h]; %1 = mul score, %0; return %1 }"));
  EXPECT_TRUE(cancels("s64", "(t: f32[2]) { %0 = load t[h]; %1 = add score, %0; %2 = tanh %1; return %2 }"));
  EXPECT_TRUE(cancels("s64",
                      "(t: f32[2]) { %0 = load t[h]; %1 = sigmoid score; %2 = add %0, %1; %3 = abs %2; return "
                      "%3 }"));
  EXPECT_FALSE(cancels("s64", "(t: f32[64]) { %0 = load t[kv]; %1 = add score, %0; return %1 }"));
  EXPECT_TRUE(cancels("s64",
                      "(t: f32[99]) { %0 = mul q, 2; %1 = add %0, kv; %2 = load t[%1]; %3 = add score, %2; "
                      "return %3 }"));
  EXPECT_TRUE(cancels("s64", "(t: f32[1]) { %0 = load t[kv]; %1 = add score, %0; return %1 }"));
  EXPECT_TRUE(cancels("s64", "(t: f32[64, 1]) { %0 = load t[q, kv]; %1 = add score, %0; return %1 }"));
  EXPECT_FALSE(cancels("s64", "(t: f32[64, 64]) { %0 = load t[q, kv]; %1 = add score, %0; return %1 }"));
  // Distances: of all of them, of those in a causal mask, of too few, behind the end, and clamped by the program.
  const std::string bias = " %4 = add score, %3; return %4 }";
  EXPECT_FALSE(cancels("s64", "(t: f32[127]) { %0 = sub q, kv; %1 = add %0, 63; %3 = load t[%1];" + bias));
  EXPECT_FALSE(cancels("s64", "(t: f32[?]) { %0 = sub q, kv; %1 = add %0, 63; %3 = load t[%1];" + bias));
  EXPECT_FALSE(cancels("s64", "(t: f32[64]) { %0 = sub q, kv; %3 = load t[%0];" + bias));
  EXPECT_FALSE(cancels("s64", "(t: f32[9]) { %0 = sub q, kv; %1 = add %0, 4; %3 = load t[%1];" + bias));
  EXPECT_TRUE(cancels("sq64 skv16", "(t: f32[40]) { %0 = sub q, kv; %1 = add %0, 4; %3 = load t[%1];" + bias));
  EXPECT_TRUE(cancels("sq64 skv16", "(t: f32[?]) { %0 = sub kv, q; %1 = sub %0, 4; %3 = load t[%1];" + bias));
  EXPECT_TRUE(cancels("sq64 skv16", "(t: f32[?]) { %0 = sub q, kv; %1 = min %0, 8; %3 = load t[%1];" + bias));
  // Most keys of every row have one element, but not the first ones, or not the last ones.
  EXPECT_TRUE(cancels("sq4 skv190", "(t: f32[3, 4]) { %3 = load t[kv, kv];" + bias));
  EXPECT_TRUE(cancels("sq4 skv190", "(t: f32[8]) { %0 = sub kv, 182; %3 = load t[%0];" + bias));
  EXPECT_FALSE(cancels("s64", "(t: f32[4]) { %0 = floor_div kv, 16; %3 = load t[%0];" + bias));
  // One query and one key stand for any lengths.
  EXPECT_FALSE(cancels("s1", "(t: f32[?]) { %0 = load t[kv]; %1 = add score, %0; return %1 }"));
  EXPECT_FALSE(cancels("s1", "(t: f32[?]) { %0 = sub q, kv; %1 = add %0, 63; %3 = load t[%1];" + bias));
  EXPECT_TRUE(cancels("s1", "(t: f32[1]) { %0 = load t[kv]; %1 = add score, %0; return %1 }"));
  EXPECT_TRUE(cancels("s1", "(t: f32[?]) { %0 = max kv, 100; %1 = load t[%0]; %2 = add score, %1; return %2 }"));
  EXPECT_TRUE(cancels("sq1 skv63", "(t: f32[6]) { %0 = sub kv, q; %1 = add %0, 30; %3 = load t[%1];" + bias));
}

// A block has one head, so that its tables have the elements of that head only.
TEST(CaptureLoads, SayWhichIndicesDifferInABlock) {
  const Problem problem = problem_of(
      "attn b2 h2 s64 d64 bf16 score_mod(t: f32[?, ?, ?, ?], ids: i32[?, ?], u: f32[?]) { %0 = load ids[q, kv]; %1 = "
      "to_i32 score; %2 = load t[h, %0, 3, %1]; %3 = add score, %2; %4 = sub q, kv; %5 = load u[%4]; %6 = add %3, %5; "
      "return %6 }");
  const std::vector<CaptureLoad> loads = capture_loads(problem, {true, false, true});
  ASSERT_EQ(loads.size(), 2U);
  for (const CaptureLoad& load : loads) {
    const bool of_t = load.capture == 0;
    EXPECT_EQ(load.moves, of_t ? 0b1010U : 0b1U);
    EXPECT_EQ(load.table, of_t ? 0 : -1) << "diagonals need none";
  }
  EXPECT_EQ(element_tables(loads), 1);
  for (const auto& [shape, tables] : {std::pair("1365", 1), std::pair("1366", 0), std::pair("?", 1)}) {
    const Problem table = problem_of(fmt::format(
        "attn h2 s64 d64 bf16 score_mod(t: f32[2, {}]) {{ %0 = add q, kv; %1 = load t[h, %0]; %2 = add score, %1; "
        "return %2 }}",
        shape));
    EXPECT_EQ(element_tables(capture_loads(table, std::vector{true})), tables) << shape;
  }
}

// Tables take their part of the shared memory that there is, and all loads beyond the most have none.
TEST(CaptureTables, FitTheSharedMemory) {
  const auto config_of = [](const std::string& dims, int loads, int architecture) -> CaptureConfig {
    std::string captures;
    std::string body;
    for (int i = 0; i < loads; ++i) {
      captures += fmt::format("{}t{}: f32[?]", i == 0 ? "" : ", ", i);
      body += fmt::format("%{0} = mul q, 1{3}; %{1} = add %{0}, kv; %{2} = load t{3}[%{1}]; %{4} = add {5}, %{2}; ",
                          4 * i, 4 * i + 1, 4 * i + 2, i, 4 * i + 3, i == 0 ? "score" : fmt::format("%{}", 4 * i - 1));
    }
    const Problem problem = problem_of(
        fmt::format("attn h2 s512 lse {} score_mod({}) {{ {}return %{} }}", dims, captures, body, 4 * loads - 1));
    const BackwardKind kind = architecture == 90 ? BackwardKind::kHopper : BackwardKind::kPortable;
    const Result<BackwardConfig> config = choose_backward_config(problem, kind, architecture);
    EXPECT_TRUE(config.ok()) << dims;
    const Result<CaptureConfig> captured =
        choose_capture_config(problem, *config, capture_loads(problem, std::vector<bool>(loads, true)));
    EXPECT_TRUE(captured.ok()) << dims;
    return *captured;
  };
  constexpr int64_t kBlockBytes[] = {163 << 10, 99 << 10, 227 << 10};
  for (const char* dims : {"d64 bf16 residual", "d128 bf16 residual", "d256 f16 residual", "d256 bf16"}) {
    for (const int loads : {1, 3, 11}) {
      for (const int i : {0, 1, 2}) {
        constexpr int kArchitectures[] = {80, 86, 90};
        const CaptureConfig config = config_of(dims, loads, kArchitectures[i]);
        const int64_t table = config.hopper ? config.hopper->queries.table_bytes : config.table_bytes;
        const ForwardConfig& kernel = config.hopper ? config.hopper->queries.config : config.config;
        EXPECT_LE(kernel.shared_bytes, kBlockBytes[i]) << dims << " sm_" << kArchitectures[i];
        EXPECT_GE(std::min(loads, kMostElementTables) * table, 16000) << dims << " sm_" << kArchitectures[i];
      }
    }
  }
  EXPECT_LE(config_of("d256 f32", 1, 86).config.shared_bytes, kBlockBytes[1]);
}

// The fused kernel: every tile that an architecture chooses fits its shared memory. Few values are spilled, most of
// them such as stay the same through the loop (docs/lessons).
constexpr int64_t kFusedSpills = 200;

void expect_fused(const std::string& text, std::initializer_list<int> architectures) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::get();
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.error().message;
  const Problem problem = problem_of(text);
  for (const int architecture : architectures) {
    const Result<BackwardConfig> config = choose_backward_config(problem, BackwardKind::kPortable, architecture);
    ASSERT_TRUE(config.ok()) << config.error().message;
    const auto& family = std::get<Sm80Backward>(*config);
    ASSERT_TRUE(family.fused) << text << " sm_" << architecture;
    const Result<CompiledKernel> kernel = (*nvrtc)->compile(backward_source(problem, *family.fused));
    ASSERT_TRUE(kernel.ok()) << kernel.error().message;
    expect_spills_at_most(kFusedSpills, *kernel, describe(*config));
  }
}

class FusedBackwardCompiles : public ::testing::TestWithParam<std::string> {};

TEST_P(FusedBackwardCompiles, ForTheNewestArchitecture) {
  expect_fused("attn h2 s512 lse residual " + GetParam(), {100});
}

INSTANTIATE_TEST_SUITE_P(Configurations, FusedBackwardCompiles,
                         ::testing::Values("d128 bf16", "d64 f16 softcap=30 causal", "d96 bf16 alibi causal",
                                           "d128 bf16 cu_seqlens causal", "d128 bf16 dropout=0.1 causal",
                                           "dqk192 dv128 bf16 causal", "d256 f16 softcap=30", "dqk160 dv20 bf16 causal",
                                           "d192 bf16 softcap=30 causal", "d192 f16 dropout=0.1 causal",
                                           "d192 bf16 alibi causal"));

TEST(FusedBackward, CompilesForEveryArchitecture) {
  expect_fused("attn h2 s512 d128 bf16 lse residual causal", {80, 86, 89, 90, 120});
  expect_fused("attn h2 s512 d64 bf16 lse residual causal", {80, 86, 90});
  expect_fused("attn h2 s512 d96 bf16 lse residual", {80, 90, 120});
  expect_fused("attn h2 s512 d96 f16 lse residual dropout=0.1 causal", {90});
  expect_fused("attn h2 s512 dqk80 dv96 bf16 lse residual cu_seqlens causal", {90});
  expect_fused("attn h2 s512 d96 bf16 lse residual bias=bf16 causal", {90});
  expect_fused("attn h2 s512 dqk96 dv32 bf16 lse residual", {80, 90});
  expect_fused("attn h2 s512 dqk32 dv128 f16 lse residual causal", {80});
  expect_fused("attn h2 s512 dqk128 dv64 bf16 lse residual causal", {90});
  expect_fused("attn h2 s512 d128 f16 lse residual cu_seqlens causal", {90});
  expect_fused("attn h2 s512 d128 bf16 lse residual bias=bf16 causal", {90, 100});
  expect_fused("attn h2 s512 d128 bf16 lse residual mask=bool", {90, 100});
  expect_fused("attn h2 s512 d128 f16 lse residual dropout=0.1 causal", {90});
  expect_fused("attn h2 s512 d192 bf16 lse residual causal", {86, 120});
  expect_fused("attn h2 s512 d64 bf16 lse out=f32 d_out=inputs", {80});
}

// The tiles of docs/lessons/cuda_portable.md.
TEST(FusedBackward, TilesFitTheSharedMemory) {
  struct Row {
    const char* dims;      // and words that matter
    const char* tiles[3];  // of 80, 86, 90: queries x keys, stages, blocks; empty where separate kernels run
  };
  for (const Row& row :
       {Row{"d64", {"128x128 2 1", "64x64 1 2", "128x128 2 1"}}, Row{"d96", {"64x128 2 1", "64x64 1 1", "128x128 2 1"}},
        Row{"d128", {"64x128 2 1", "64x64 1 1", "64x128 2 1"}},
        Row{"d128 causal", {"64x128 2 1", "64x64 1 1", "128x128 2 1"}},
        Row{"d128 cu_seqlens causal", {"64x128 2 1", "64x64 1 1", "64x128 2 1"}},
        Row{"d128 alibi causal", {"64x128 2 1", "64x64 1 1", "64x128 2 1"}},
        Row{"d128 dropout=0.1 causal", {"64x128 2 1", "64x64 1 1", "64x128 2 1"}},
        Row{"d192", {"64x64 2 1", "64x32 1 1", "128x64 2 1"}}, Row{"d256", {"64x64 1 1", "", "64x64 2 1"}}}) {
    const Problem problem = problem_of(std::string("attn h2 s512 bf16 lse residual ") + row.dims);
    constexpr int kArchitectures[3][2] = {{80, 164}, {86, 100}, {90, 228}};
    for (int i = 0; i < 3; ++i) {
      const auto [architecture, kibibytes] = kArchitectures[i];
      const Result<BackwardConfig> config = choose_backward_config(problem, BackwardKind::kPortable, architecture);
      ASSERT_TRUE(config.ok()) << row.dims << ": " << config.error().message;
      const auto& fused = std::get<Sm80Backward>(*config).fused;
      std::string tiles;
      if (fused) {
        const ForwardConfig& with = fused->config;
        tiles = fmt::format("{}x{} {} {}", with.q_tile, with.kv_tile, with.stages, with.blocks);
        EXPECT_LE(with.blocks * (with.shared_bytes + 1024), kibibytes * 1024) << row.dims << " sm_" << architecture;
      }
      EXPECT_EQ(tiles, row.tiles[i]) << row.dims << " sm_" << architecture;
    }
  }
}

class HopperBackwardCompiles : public ::testing::TestWithParam<std::string> {};

TEST_P(HopperBackwardCompiles, WithoutSpillsOrSerialisedProducts) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::get();
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.error().message;
  const Problem problem = problem_of("attn h2 s4096 lse " + GetParam());
  const Result<BackwardConfig> config = choose_backward_config(problem, BackwardKind::kHopper, 90);
  ASSERT_TRUE(config.ok()) << config.error().message;
  const auto& family = std::get<Sm90Backward>(*config);
  // docs/lessons/cuda_backward.md explains these spills: registers are short where a kernel for queries has two sums,
  // and where the fused kernel, or a kernel with one of two wide sums, has a mask.
  constexpr int kOfQueries = 256;
  constexpr int kOfMasks = 136;
  constexpr int kOfRings = 32;  // of the producer
  std::vector<Sm90BackwardKernel> kernels = {family.queries, family.keys};
  if (family.fused) {
    kernels = {*family.fused};
  }
  if (family.values) {
    kernels.push_back(*family.values);
  }
  for (const Sm90BackwardKernel& each : kernels) {
    const KernelSource source = backward_source(problem, each);
    const Result<CompiledKernel> kernel = (*nvrtc)->compile(source);
    ASSERT_TRUE(kernel.ok()) << kernel.error().message;
    EXPECT_EQ(kernel->log.find("setmaxnreg ignored"), std::string::npos) << kernel->log;
    const bool both_sums = each.fused || (each.sums_first && each.sums_second && problem.head_dim > 128);
    const int of_keys = both_sums && problem.mask_mod ? kOfMasks : each.rings ? kOfRings : 0;
    const int allowed = each.rows_are_keys ? of_keys : kOfQueries;
    expect_spills_at_most(allowed, *kernel, source.name + ": " + describe(*config));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, HopperBackwardCompiles,
    ::testing::Values(
        "d128 bf16 residual", "d64 bf16 residual", "d96 f16 residual", "d40 bf16 residual", "d128 bf16 residual causal",
        "d64 f16 residual causal", "d128 bf16 residual softcap=30", "d128 f16 residual softcap=30 causal",
        "d128 bf16 residual alibi causal", "d128 bf16 residual window=1024", "d128 bf16 residual dropout=0.1 causal",
        "d128 bf16 residual cu_seqlens causal", "d128 bf16 residual nondeterministic", "d128 bf16 residual dropout=0.1",
        "dqk104 dv72 f16 residual", "d128 f16 residual nondeterministic cu_seqlens causal",
        "d64 bf16 residual nondeterministic causal", "d96 bf16 residual nondeterministic softcap=30",
        "d72 bf16 residual causal", "dqk96 dv128 f16 residual cu_seqlens", "d128 bf16 out=f32", "d128 bf16", "d64 bf16",
        "d96 f16", "d40 bf16", "dqk72 dv96 f16", "d128 bf16 causal", "d64 f16 causal", "d192 bf16", "d256 bf16 causal",
        "d192 bf16 residual", "d192 bf16 residual causal", "d192 bf16 residual nondeterministic causal",
        "d160 f16 residual cu_seqlens", "d136 f16 residual sinks=2 window=100",
        "dqk184 dv136 bf16 residual nondeterministic", "dqk192 dv128 bf16 causal", "dqk192 dv128 f16 cu_seqlens",
        "dqk192 dv128 bf16 window=100", "d160 bf16", "dqk192 dv128 bf16 alibi", "d256 f16 softcap=30",
        "d128 bf16 softcap=30", "d128 f16 softcap=30 causal", "d64 bf16 softcap=30 causal", "d128 bf16 alibi causal",
        "d128 bf16 window=1024", "d128 bf16 sinks=2 causal", "d128 bf16 dropout=0.1 causal", "d64 bf16 dropout=0.1",
        "d128 bf16 cu_seqlens causal",
        "d128 bf16 mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; %2 = eq %0, %1; return %2 }",
        "d128 bf16 score_mod(t: f32[?]) { %0 = sub q, kv; %1 = load t[%0]; %2 = add score, %1; return %2 }"));

class HopperCapturesCompile : public ::testing::TestWithParam<std::string> {};

TEST_P(HopperCapturesCompile, WithoutSpillsOrSerialisedProducts) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::get();
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.error().message;
  const Problem problem = problem_of("attn h2 s4096 lse residual " + GetParam());
  const Result<BackwardConfig> config = choose_backward_config(problem, BackwardKind::kHopper, 90);
  ASSERT_TRUE(config.ok()) << config.error().message;
  const std::vector<bool> wants_gradient(problem.captures.size(), true);
  const std::vector<CaptureLoad> loads = capture_loads(problem, wants_gradient);
  const Result<CaptureConfig> captures = choose_capture_config(problem, *config, loads);
  ASSERT_TRUE(captures.ok()) << captures.error().message;
  const CaptureSources sources = capture_sources(problem, *captures, loads, wants_gradient);
  EXPECT_TRUE(sources.queries || sources.keys || sources.planes);
  EXPECT_FALSE(sources.portable);
  for (const std::optional<KernelSource>& source : {sources.queries, sources.keys, sources.planes}) {
    if (source) {
      const Result<CompiledKernel> kernel = (*nvrtc)->compile(*source);
      ASSERT_TRUE(kernel.ok()) << kernel.error().message;
      EXPECT_EQ(kernel->log.find("setmaxnreg ignored"), std::string::npos) << kernel->log;
      expect_spills_at_most(0, *kernel, source->name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, HopperCapturesCompile,
    ::testing::Values(
        "d128 bf16 score_mod(t: f32[?]) { %0 = sub q, kv; %1 = load t[%0]; %2 = add score, %1; return %2 }",
        "d64 f16 causal score_mod(t: f32[?], u: f32[?]) { %0 = load t[kv]; %1 = add score, %0; %2 = load u[q]; %3 = "
        "mul "
        "%1, %2; return %3 }",
        "d256 bf16 score_mod(t: f32[?]) { %0 = add q, kv; %1 = load t[%0]; %2 = add score, %1; return %2 }",
        "d128 bf16 causal dropout=0.1 score_mod(t: f32[37, 2], ids: i32[?, ?]) { %0 = load ids[q, kv]; %1 = load t[%0, "
        "h]; %2 = add score, %1; return %2 }",
        "d256 bf16 score_mod(t: f32[?], u: bf16[?, ?]) { %0 = add q, kv; %1 = load t[%0]; %2 = load u[%0, h]; %3 = "
        "sub q, kv; %4 = load t[%3]; %5 = add %1, %2; %6 = add %5, %4; %7 = add score, %6; return %7 }",
        "dqk192 dv128 bf16 softcap=30 causal score_mod(t: bf16[?, ?]) { %0 = sub q, kv; %1 = load t[h, %0]; %2 = mul "
        "score, %1; return %2 }",
        "d128 bf16 dropout=0.1 window=1024 score_mod(t: bf16[?]) { %0 = load t[h]; %1 = mul score, %0; return %1 }",
        "d128 bf16 causal score_mod(t: f32[?, ?, ?]) { %0 = load t[h, q, kv]; %1 = add score, %0; return %1 }",
        "d256 f16 score_mod(t: f32[?, ?]) { %0 = load t[kv, q]; %1 = mul score, %0; return %1 }"));

// The kernels before and after a main part, with both forms of the rows' statistics.
TEST(BackwardFrame, RowsOfABlockBelongToOneTile) {
  for (const char* dtype : {"bf16", "f16 out=f32"}) {
    for (int dim = 1; dim <= 256; ++dim) {
      const RowThreads of_row = row_threads(problem_of(fmt::format("attn h1 s64 d{} {} lse", dim, dtype)));
      SCOPED_TRACE(fmt::format("d{} {}: {} threads, {} rows", dim, dtype, of_row.threads, of_row.rows));
      EXPECT_TRUE(of_row.threads > 0 && 32 % of_row.threads == 0);
      EXPECT_LE(of_row.rows, of_row.threads);  // a thread finishes one
      EXPECT_TRUE(of_row.rows == 1 || of_row.rows * kRowTileThreads / of_row.threads <= kLeastRowTile);
    }
  }
  for (const char* text : {"d16", "d64", "d96", "d128", "d192", "d256", "dqk192 dv128", "d64 dropout=0.1"}) {
    SCOPED_TRACE(text);
    const Problem problem = problem_of(fmt::format("attn h2 s4096 bf16 lse residual {}", text));
    for (const int architecture : {80, 86, 89, 90, 100, 120}) {
      const auto portable = choose_backward_config(problem, BackwardKind::kPortable, architecture);
      const auto hopper = choose_backward_config(problem, BackwardKind::kHopper, architecture);
      ASSERT_TRUE(portable.ok() && hopper.ok());
      if (const auto& fused = std::get<Sm80Backward>(*portable).fused) {
        EXPECT_GE(fused->config.q_tile, kLeastRowTile);
      }
      EXPECT_GE(std::get<Sm90Backward>(*hopper).keys.config.kv_tile, kLeastRowTile);
    }
  }
}

TEST(BackwardFrame, CompilesAroundAnyMainPart) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::get();
  ASSERT_TRUE(nvrtc.ok()) << nvrtc.error().message;
  for (const char* features :
       {"d64 bf16 lse", "d128 bf16 lse out=f32 sinks=2", "d40 f16 lse out=f32 d_out=inputs", "d256 f16 lse sinks=1",
        "d40 f16 lse out=bf16", "d72 f32 lse",
        "dqk192 dv200 bf16 lse mask_mod(ids: i32[?]) { %0 = load ids[kv]; %1 = eq %0, q; return %1 }"}) {
    const Problem problem = problem_of(std::string("attn h2 s512 ") + features);
    for (const int architecture : {80, 90}) {
      const auto expect_compiles = [&](const KernelSource& source) {
        const Result<CompiledKernel> kernel = (*nvrtc)->compile(source);
        ASSERT_TRUE(kernel.ok()) << features << ": " << kernel.error().message;
        expect_spills_at_most(0, *kernel, features);
      };
      for (const bool row_tiles : {false, true}) {
        // If nothing runs before the main part, ptxas has no kernel to report on.
        const bool preprocesses = row_tiles || problem.d_out_dtype() != problem.dtype || problem.mask_mod.has_value();
        if (preprocesses) {
          expect_compiles(preprocess_source(problem, architecture, row_tiles));
        }
        expect_compiles(postprocess_source(problem, architecture, row_tiles));
      }
    }
  }
}

class BulkDecodeCompiles : public ::testing::TestWithParam<std::string> {};

TEST_P(BulkDecodeCompiles, ForTheOldestAndTheNewestArchitecture) {
  expect_compiled(problem_of(GetParam()), choose_bulk_decode_config, {90, 100});
}

INSTANTIATE_TEST_SUITE_P(Configurations, BulkDecodeCompiles,
                         ::testing::Values("attn hq8 hkv2 sq1 skv512 d128 bf16",
                                           "attn hq8 hkv2 sq1 skv512 d64 bf16 causal=bottom_right page_size=16 lse",
                                           "attn hq8 hkv2 sq3 skv512 d256 f16 softcap=30 sinks=1",
                                           "attn hq8 hkv2 sq3 skv512 d128 bf16 causal out=f32 lse",
                                           "attn h2 sq1 skv512 dqk192 dv72 f16 alibi dropout=0.1 row_max"));

INSTANTIATE_TEST_SUITE_P(Configurations, HopperCompiles, ::testing::ValuesIn(hopper_problems()));

}  // namespace
}  // namespace flashlift::cuda
