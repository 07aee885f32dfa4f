// Random problems on a GPU compared with the oracle. Built and registered only if FLASHLIFT_TEST_GPU is set.
//
// FLASHLIFT_TEST_PROBLEMS: how many random problems (default 200); FLASHLIFT_TEST_SEED: the first seed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <tuple>

#include "cuda/launch/device_tensors.h"
#include "flashlift/attention.h"
#include "flashlift/block_mask.h"
#include "problem/check.h"
#include "support/random_problem.h"
#include "support/tensors.h"

namespace flashlift {
namespace {

using testing::OwnedArguments;
using testing::Random;

int number_from(const char* name, int otherwise) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): tests only
  return value != nullptr ? std::atoi(value) : otherwise;
}

// Runs on the GPU and compares the host tensors' results with the oracle's. `compiled`: the problem that is compiled,
// if the tensors have other lengths.
void expect_right(const Problem& problem, OwnedArguments& host, const std::string& implementation = "",
                  const Problem* compiled = nullptr) {
  SCOPED_TRACE(print(problem));
  const auto device = cuda::DeviceTensors::copy_of(host.views, 0);
  ASSERT_TRUE(device.ok()) << device.error().message;
  const Result<Attention> attention = Attention::compile(
      compiled != nullptr ? *compiled : problem, {.device = DeviceKind::kCuda, .implementation = implementation});
  ASSERT_TRUE(attention.ok()) << attention.error().message;
  // Runs twice: the second call finds the memory as the first one left it, and must give the same bits.
  std::vector<std::byte> first;
  for (int call = 0; call < 2; ++call) {
    const Status status = attention->run(device->views());
    ASSERT_TRUE(status.ok()) << status.error().message;
    const Status fetched = device->fetch(host.views);
    ASSERT_TRUE(fetched.ok()) << fetched.error().message;
    std::vector<std::byte> bits = testing::bits_of(host.views.out);
    EXPECT_TRUE(call == 0 || bits == first) << attention->implementation() << ": two calls differ";
    first = std::move(bits);
  }
  const Result<problem::Judgement> report = problem::check_output(problem, host.views);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_TRUE(report->ok) << attention->implementation() << ": " << report->reason;
}

void expect_agreement(const std::string& text, uint64_t seed, const std::string& implementation, bool strided) {
  const Result<Problem> problem = parse_problem(text);
  ASSERT_TRUE(problem.ok()) << text << ": " << problem.error().message;
  Random random(seed);
  OwnedArguments host =
      strided ? testing::strided_arguments(*problem, random) : testing::dense_arguments(*problem, random);
  expect_right(*problem, host, implementation);
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool one_in(int n) { return between(1, n) == 1; }
  template <typename T>
  T of(std::initializer_list<T> choices) {
    return choices.begin()[between(0, static_cast<int64_t>(choices.size()) - 1)];
  }

 private:
  Random random_;
};

std::string random_score_mod(Draw& draw) {
  return draw.of<const char*>(
      {" score_mod(bias: f32[?,?]) { %0 = load bias[q, kv]; %1 = add score, %0; return %1 }",
       " score_mod(slope: bf16[?]) { %0 = load slope[h]; %1 = sub kv, q; %2 = to_f32 %1; %3 = mul %0, %2; %4 = add "
       "score, %3; return %4 }",
       " score_mod(table: f16[?]) { %0 = sub q, kv; %1 = add %0, 100; %2 = load table[%1]; %3 = add score, %2; return "
       "%3 }",
       " score_mod() { %0 = tanh score; %1 = mul %0, 3.0; %2 = sub kv, q; %3 = lt %2, 40; %4 = select %3, %1, -inf; "
       "return %4 }",
       " score_mod(s: f32[?,?,?]) { %0 = load s[b, h, kv]; %1 = mul score, %0; %2 = sigmoid %1; return %2 }",
       " score_mod(g: i32[?]) { %0 = load g[q]; %1 = load g[kv]; %2 = eq %0, %1; %3 = select %2, 0.0, -inf; %4 = "
       "add score, %3; return %4 }",
       " score_mod() { %0 = rem q, 3; %1 = lt kv, %0; %2 = select %1, score, -1e30; return %2 }"});
}

std::string random_mask_mod(Draw& draw) {
  return draw.of<const char*>(
      {" mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; %2 = eq %0, %1; return %2 }",
       " mask_mod(len: i64[?]) { %0 = load len[b]; %1 = to_i64 kv; %2 = mul %0, 40:i64; %3 = lt %1, %2; return %3 }",
       " mask_mod(keep: bool[?,?,?,?]) { %0 = load keep[b, h, q, kv]; return %0 }",
       " mask_mod(ids: u8[?,?]) { %0 = load ids[b, kv]; %1 = lt %0, 12; %2 = le kv, q; %3 = and %1, %2; return %3 }",
       " mask_mod() { %0 = floor_div q, 37; %1 = floor_div kv, 37; %2 = eq %0, %1; %3 = rem kv, 64; %4 = lt %3, 2; %5 "
       "= or "
       "%2, %4; return %5 }"});
}

std::string random_problem(Draw& draw, bool any_dtype) {
  const int64_t kv_heads = draw.between(1, 3);
  const int64_t page = draw.one_in(5) ? draw.of<int64_t>({1, 5, 8, 16, 64, 128}) : 0;
  std::string text = "attn b" + std::to_string(draw.between(1, 3)) + " hq" +
                     std::to_string(kv_heads * draw.between(1, 4)) + " hkv" + std::to_string(kv_heads);
  const int64_t longest = draw.of<int64_t>({20, 150, 400});
  const int64_t kv_len = draw.one_in(12) ? 0 : draw.between(1, longest);
  text += " sq" + std::to_string(draw.one_in(5) ? draw.between(1, 8) : draw.between(1, longest)) + " skv" +
          std::to_string(page > 0 ? (kv_len + page - 1) / page * page : kv_len);
  text += page > 0 ? " page_size=" + std::to_string(page) : "";
  const int64_t dim = draw.of<int64_t>({64, 128, 64, 128, 96, 192, 256, 8 * draw.between(1, 32)});
  text += draw.one_in(4) ? " dqk" + std::to_string(dim) + " dv" + std::to_string(8 * draw.between(1, 32))
                         : " d" + std::to_string(dim);
  text += any_dtype ? draw.of<const char*>({" bf16", " f16", " f32"}) : draw.of<const char*>({" bf16", " f16"});
  text += draw.of<const char*>({"", "", "", " out=f32"});
  text +=
      draw.of<const char*>({"", " causal", " causal=bottom_right", " window=30", " window=30,10", " causal prefix=50"});
  text += draw.of<const char*>({"", "", "", " softcap=5", " alibi", " alibi softcap=20"});
  text += draw.of<const char*>(
      {"", " lse", " sinks=2 lse", " empty_rows=uniform lse", " empty_rows=nan", " unnormalized lse"});
  text += draw.of<const char*>({"", "", "", "", " scale=0.3", " scale=-0.2"});
  text += draw.of<const char*>({"", "", "", "", " row_max", " dropout=0.3", " dropout=0.3 keep_mask"});
  text += draw.one_in(3) ? random_score_mod(draw) : "";
  text += draw.one_in(3) ? random_mask_mod(draw) : "";
  return text;
}

class FixedProblems : public ::testing::TestWithParam<const char*> {};

TEST_P(FixedProblems, AgreeWithTheOracle) { expect_agreement(GetParam(), 1, "", false); }

INSTANTIATE_TEST_SUITE_P(
    Device, FixedProblems,
    ::testing::Values(
        "attn h2 s256 d128 bf16 lse", "attn h2 sq200 skv333 d64 f16 causal lse", "attn h1 s1 d64 bf16",
        "attn b2 hq8 hkv2 sq130 skv700 d128 bf16 causal=bottom_right", "attn h2 sq64 skv0 d64 bf16 lse",
        "attn h2 sq64 skv0 d64 bf16 lse empty_rows=uniform",
        "attn h2 sq64 skv0 d64 bf16 mask_mod(ids: i32[2,?]) { %0 = load ids[b, kv]; %1 = eq %0, 3; return %1 }",
        "attn h2 s300 d40 bf16 alibi",
        // The logarithm of small sigmoids, as of gates that forget.
        "attn h2 s100 d64 bf16 lse score_mod() { %0 = sub score, 20.0; %1 = sigmoid %0; %2 = log %1; return %2 }",
        "attn h2 s300 dqk192 dv128 bf16 softcap=10 causal", "attn h2 s200 d256 f16 window=20",
        "attn h2 s700 d64 bf16 causal", "attn h2 sq900 skv777 d192 bf16 causal lse",
        "attn h2 sq500 skv900 d64 f16 window=100,20 sinks=1", "attn h2 s600 d256 bf16 causal=bottom_right prefix=300",
        "attn b2 h2 sq330 skv410 d64 bf16 mask_mod() { %0 = floor_div q, 37; %1 = floor_div kv, 37; %2 = eq %0, %1; "
        "%3 = ge q, 290; %4 = or %2, %3; return %4 }",
        "attn b2 hq16 hkv2 sq1 skv5000 d128 bf16",
        "attn b2 hq6 hkv3 sq5 skv2976 d96 f16 page_size=48 causal=bottom_right",
        "attn hq8 hkv1 sq7 skv2000 dqk72 dv200 bf16 softcap=9 sinks=1 lse", "attn b0 h2 s20 d64 bf16",
        "attn h2 s1000 d96 bf16 causal lse sinks=1",
        // Blocks have several tiles of few keys, of which warpgroups skip different numbers.
        "attn b5 h16 sq1024 skv128 d64 bf16 causal"));

// Each class of lengths has tiles of its own. Twelve heads fill an H100's multiprocessors with large tiles; two heads
// without a mask use smaller ones (cuda/emit/tile_classes.h).
class LongCalls : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(LongCalls, AgreeWithTheOracle) {
  const auto& [q_len, depth] = GetParam();
  for (const char* rest : {"hq12 hkv4 lse", "hq2 hkv1", "hq2 hkv1 softcap=5", "hq2 hkv1 causal=bottom_right lse",
                           "hq2 hkv2 causal=bottom_right alibi softcap=20", "hq2 hkv1 window=40 prefix=30 sinks=1"}) {
    expect_agreement(fmt::format("attn {} sq{} skv{} {} bf16", rest, q_len, 70 + q_len % 100, depth), 3, "", false);
  }
}

INSTANTIATE_TEST_SUITE_P(Device, LongCalls,
                         ::testing::Combine(::testing::Values(1056, 2112, 4224),
                                            ::testing::Values("d64", "d96", "d128", "dqk192 dv128")));

// In rows whose weight lies nearly all on one key, unfused attention has only the error of the other keys' small
// probabilities. When the largest probability was rounded too, because the row's maximum was out of date, the error was
// seven times as large.
TEST(Device, RowsOfNearlyOneKeyAreExact) {
  const char* text =
      "attn hq4 hkv2 sq27 skv107 dqk192 dv232 bf16 scale=0.3 window=30,30 score_mod(g: i32[?]) { %0 = load g[q]; %1 = "
      "load g[kv]; %2 = eq %0, %1; %3 = select %2, 0.0, -inf; %4 = add score, %3; return %4 }";
  for (uint64_t seed = 1'020'271; seed < 1'020'279; ++seed) {
    expect_agreement(text, seed, "cuda_sm80", true);
    expect_agreement(text, seed, "", true);
  }
}

// Some rows of a warp are empty, and the sums of rounded probabilities correct an output that is not rounded. When the
// quad computed its sum in a branch that empty rows did not enter, the result was NaN.
TEST(Device, RowsBesideEmptyRowsAreRight) {
  const char* tail =
      " empty_rows=uniform lse row_max score_mod() { %0 = div score, 20.0; %1 = tanh %0; %2 = mul %1, 20.0; %3 = sub "
      "kv, "
      "q; %4 = add h, 1; %5 = to_f32 %4; %6 = mul %5, -2.0; %7 = exp2 %6; %8 = to_f32 %3; %9 = mul %7, %8; %10 = add "
      "%2, %9; %11 = rem q, 3; %12 = lt kv, %11; %13 = select %12, %10, -1e+30; return %13 } mask_mod() { %0 = sub "
      "kv_len, q_len; %1 = add q, %0; %2 = le kv, %1; return %2 }";
  for (const char* head : {"attn b2 hq4 hkv1 sq148 skv41 d64 f16 out=f32 scale=-0.2",
                           "attn h2 sq148 skv41 d128 bf16 out=f32", "attn h2 sq5 skv41 d64 bf16 out=f32 mask=bool"}) {
    for (const char* implementation : {"cuda_sm80", ""}) {
      expect_agreement(std::string(head) + tail, 1, implementation, false);
    }
  }
}

// The kernels of the problem's own number of keys divide by a constant, others do not.
TEST(Device, DocumentsHaveTheLengthOfTheCall) {
  const Result<Problem> compiled = parse_problem("attn b2 h2 sq400 skv400 d64 bf16 documents=4");
  ASSERT_TRUE(compiled.ok()) << compiled.error().message;
  for (const char* lengths : {"sq400 skv400", "sq200 skv200", "sq400 skv203", "sq3 skv400", "sq3 skv77"}) {
    const Result<Problem> problem = parse_problem(std::string("attn b2 h2 d64 bf16 documents=4 ") + lengths);
    ASSERT_TRUE(problem.ok()) << problem.error().message;
    Random random(1);
    OwnedArguments host = testing::dense_arguments(*problem, random);
    expect_right(*problem, host, "", &*compiled);
  }
}

// Many queries use other tiles.
TEST(Device, LongProblemsAgreeWithTheOracle) {
  for (const char* text :
       {"attn h2 sq2300 skv333 d128 bf16 lse", "attn hq2 hkv1 sq2100 skv160 dqk128 dv64 f16 row_max",
        "attn h1 sq2100 skv400 d128 bf16 softcap=5", "attn h2 sq2100 skv400 d128 bf16 alibi sinks=1",
        "attn h1 sq2100 skv400 d128 bf16 page_size=16", "attn h1 sq2100 skv400 d64 bf16 causal=bottom_right",
        "attn h1 sq2300 skv2300 d128 bf16 causal window=200 lse", "attn h1 sq4200 skv500 d128 bf16 causal",
        "attn hq2 hkv1 sq4300 skv700 dqk128 dv96 f16 causal=bottom_right sinks=1 lse empty_rows=uniform",
        "attn h1 sq2100 skv300 d128 bf16 score_mod(table: f32[?]) { %0 = sub q, kv; %1 = add %0, 310; %2 = load "
        "table[%1]; %3 = add score, %2; return %3 }",
        "attn h2 sq1500 skv1500 d64 bf16 cu_seqlens causal alibi",
        "attn h1 sq1300 skv1300 d128 bf16 mask_mod(ids: i32[?]) { %0 = load ids[q]; %1 = load ids[kv]; %2 = eq %0, %1; "
        "%3 = le kv, q; %4 = and %2, %3; return %4 }"}) {
    for (const bool strided : {false, true}) {
      expect_agreement(text, 2, "", strided);
    }
  }
}

TEST(Device, RandomProblemsAgreeWithTheOracle) {
  const int count = number_from("FLASHLIFT_TEST_PROBLEMS", 200);
  const int seed = number_from("FLASHLIFT_TEST_SEED", 1);
  for (int i = 0; i < count; ++i) {
    Draw draw(static_cast<uint64_t>(seed + i));
    const std::string text = random_problem(draw, true);
    SCOPED_TRACE("seed " + std::to_string(seed + i));
    expect_agreement(text, static_cast<uint64_t>(seed + i), "", draw.one_in(3));
  }
}

TEST(Device, ThePortableKernelAgreesEverywhere) {
  const int count = number_from("FLASHLIFT_TEST_PROBLEMS", 200);
  const int seed = number_from("FLASHLIFT_TEST_SEED", 1) + 1'000'000;
  for (int i = 0; i < count; ++i) {
    Draw draw(static_cast<uint64_t>(seed + i));
    const std::string text = random_problem(draw, true);
    SCOPED_TRACE("seed " + std::to_string(seed + i));
    expect_agreement(text, static_cast<uint64_t>(seed + i), "cuda_sm80", draw.one_in(2));
  }
}

// Any problem that a description allows: the same draws as in the CPU backend's tests.
TEST(Device, DrawnProblemsAgreeWithTheOracle) {
  const int count = number_from("FLASHLIFT_TEST_PROBLEMS", 200);
  const int seed = number_from("FLASHLIFT_TEST_SEED", 1) + 2'000'000;
  for (int i = 0; i < count; ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed + i));
    Random random(static_cast<uint64_t>(seed + i));
    const Problem problem = testing::draw_problem(random);
    OwnedArguments host =
        i % 3 == 0 ? testing::strided_arguments(problem, random) : testing::dense_arguments(problem, random);
    expect_right(problem, host);
  }
}

uint16_t* element_of(const TensorView& view, int64_t b, int64_t h, int64_t row, int64_t column) {
  return static_cast<uint16_t*>(view.data) + b * view.strides[0] + h * view.strides[1] + row * view.strides[2] +
         column * view.strides[3];
}

// A masked key's value has no effect, even if it is infinite or NaN; a kept key's value has.
TEST(Device, ValuesThatAreNotFiniteStayWithTheKeysThatKeepThem) {
  constexpr uint16_t kInfinity = 0x7f80, kNegativeInfinity = 0xff80, kNan = 0x7fc0;  // bf16
  for (const char* implementation : {"", "cuda_sm80"}) {
    for (const char* text :
         {"attn b2 hq4 hkv2 s500 d128 bf16 causal lse", "attn h2 s400 d64 bf16 window=30",
          "attn h2 s300 d256 bf16 causal",
          "attn b2 h2 sq100 skv300 d80 bf16 mask_mod(len: i32[2]) { %0 = load len[b]; %1 = lt kv, %0; return %1 }"}) {
      SCOPED_TRACE(text);
      const Result<Problem> problem = parse_problem(text);
      ASSERT_TRUE(problem.ok()) << problem.error().message;
      Random random(7);
      OwnedArguments host = testing::dense_arguments(*problem, random);
      for (const TensorView& lengths : host.views.captures) {
        static_cast<int32_t*>(lengths.data)[0] = 150;
        static_cast<int32_t*>(lengths.data)[1] = 1;
      }
      const TensorView& v = host.views.v;
      *element_of(v, 0, 0, 200, 3) = kNan;
      *element_of(v, 0, 0, 290, 17) = kInfinity;
      *element_of(v, 0, 0, 291, 17) = kInfinity;
      *element_of(v, 0, 1, 151, 40) = kNegativeInfinity;
      for (int64_t column = 0; column < v.sizes[3]; ++column) {  // padding that nobody cleared
        for (int64_t row = 295; row < 300; ++row) {
          *element_of(v, v.sizes[0] - 1, 1, row, column) = kNan;
        }
      }
      expect_right(*problem, host, implementation);
    }
  }
}

// Rows of one huge constant are rows of equal scores, and an infinite score makes its row NaN.
TEST(Device, HugeAndInfiniteScores) {
  for (const char* implementation : {"", "cuda_sm80"}) {
    for (const char* features :
         {"score_mod() { %0 = lt kv, q; %1 = select %0, score, -1e30; return %1 }",
          "score_mod() { %0 = gt q, 40; %1 = select %0, -3.4028235e38, score; return %1 }",
          "score_mod() { %0 = add score, 1e20; return %0 }", "scale=1e6", "scale=1e30 sinks=1",
          "score_mod() { %0 = eq kv, 130; %1 = select %0, inf, score; return %1 }",
          "score_mod() { %0 = eq kv, q; %1 = select %0, nan, score; return %1 }",
          "unnormalized score_mod() { %0 = lt kv, 200; %1 = select %0, -1e30, -2e30; return %1 }"}) {
      for (const char* dtype : {" f32 ", " bf16 "}) {
        expect_agreement("attn b2 h2 sq90 skv300 d64 lse row_max" + std::string(dtype) + features, 5, implementation,
                         false);
      }
    }
  }
}

// Rows of one key: a probability is exactly 1, and no sum divides an error of it away.
TEST(Device, UnnormalizedRowsOfOneKeyAreItsValues) {
  for (const char* implementation : {"", "cuda_sm80"}) {
    for (const char* words : {"skv1", "skv90 mask_mod() { %0 = eq q, kv; return %0 }"}) {
      expect_agreement("attn h2 sq90 d64 bf16 out=f32 scale=3 unnormalized lse " + std::string(words), 6,
                       implementation, false);
    }
  }
}

// Tensors as masks: the bounds of their blocks decide which tiles are skipped. Block lists become a captured tensor.
TEST(Device, FloatCapturesAndBlockListsMask) {
  expect_agreement(
      "attn b2 h2 s700 d64 bf16 mask_mod(keep: f32[?,?]) { %0 = load keep[q, kv]; %1 = gt %0, 0.3; return %1 }", 3, "",
      false);
  expect_agreement(
      "attn b2 h2 s700 d64 bf16 causal mask_mod(w: bf16[700]) { %0 = load w[kv]; %1 = lt %0, 0.5; return %1 }", 4, "",
      true);
  for (const char* implementation : {"", "cuda_sm80"}) {
    Result<Problem> problem = parse_problem("attn b2 h2 s500 d64 bf16 causal");
    ASSERT_TRUE(problem.ok());
    BlockKinds kinds{.q_block = 128, .kv_block = 64, .shape = {1, 2, 4, 8}, .kinds = std::vector<uint8_t>(64)};
    for (size_t i = 0; i < kinds.kinds.size(); ++i) {
      kinds.kinds[i] = static_cast<uint8_t>(i * i % 7 % 3);
    }
    const Status restricted = restrict_to_blocks(kinds, *problem);
    ASSERT_TRUE(restricted.ok()) << restricted.error().message;
    Random random(9);
    OwnedArguments host = testing::dense_arguments(*problem, random);
    host.views.captures.back() = kinds.view();
    expect_right(*problem, host, implementation);
  }
}

// The patterns of a mask that is given as a tensor: kept up to the diagonal, in blocks, nowhere for some queries,
// everywhere.
bool keeps(int pattern, int64_t q, int64_t kv) {
  switch (pattern) {
    case 0:
      return kv <= q;
    case 1:
      return (q / 100 + kv / 70) % 3 == 0;
    case 3:
      return true;
    default:
      return q / 64 % 2 == 0 && kv < 130;
  }
}

// Fills [batch, heads, q_len, kv_len] with the pattern, the same for all heads: bool, or floats of 0 and -inf.
void fill_mask(const TensorView& mask, int pattern) {
  const auto element = static_cast<int64_t>(size_in_bytes(mask.dtype));
  for (int64_t b = 0; b < mask.sizes[0]; ++b) {
    for (int64_t q = 0; q < mask.sizes[2]; ++q) {
      for (int64_t kv = 0; kv < mask.sizes[3]; ++kv) {
        const bool kept = keeps(pattern, q, kv + 30 * b);
        auto* const at = static_cast<std::byte*>(mask.data) +
                         (b * mask.strides[0] + q * mask.strides[2] + kv * mask.strides[3]) * element;
        switch (mask.dtype) {
          case DType::kBool:
            *reinterpret_cast<bool*>(at) = kept;
            break;
          case DType::kF32:
            *reinterpret_cast<float*>(at) = kept ? 0.0f : -INFINITY;
            break;
          default:
            *reinterpret_cast<uint16_t*>(at) = kept ? 0 : mask.dtype == DType::kBF16 ? 0xff80 : 0xfc00;
        }
      }
    }
  }
}

TEST(Device, MasksThatAreTensorsAgreeWithTheOracle) {
  const auto adds = [](const char* dtype) {
    return std::string(" score_mod(mask: ") + dtype +
           "[1,8,130,300]) { %0 = load mask[b, 0, q, kv]; %1 = add score, %0; return %1 }";
  };
  for (const std::string& features :
       {"d64 bf16" + adds("f32"), "d128 bf16 softcap=20 lse" + adds("bf16"), std::string("d128 f16 mask=bool"),
        "d64 f32 empty_rows=uniform" + adds("f32"), "d96 bf16 causal sinks=1 alibi" + adds("f16"),
        std::string("d64 bf16 bias=f32")}) {
    for (int pattern = 0; pattern < 4; ++pattern) {
      const std::string text = "attn hq8 hkv2 sq130 skv300 " + features;
      SCOPED_TRACE("pattern " + std::to_string(pattern));
      const Result<Problem> problem = parse_problem(text);
      ASSERT_TRUE(problem.ok()) << text << ": " << problem.error().message;
      Random random(11);
      OwnedArguments host = testing::dense_arguments(*problem, random);
      TensorView& mask = host.views.captures.at(0);
      mask.strides[1] = 0;
      fill_mask(mask, pattern);
      expect_right(*problem, host);
      expect_right(*problem, host, "cuda_sm80");
    }
  }
}

// A skipped tile is not computed: the content of its keys has no effect.
TEST(Device, TilesThatAFloatMaskRulesOutAreSkipped) {
  const Result<Problem> problem = parse_problem(
      "attn h16 s512 d64 bf16 score_mod(mask: f32[512,512]) { %0 = load mask[q, kv]; %1 = add score, %0; return %1 }");
  ASSERT_TRUE(problem.ok()) << problem.error().message;
  Random random(3);
  OwnedArguments host = testing::dense_arguments(*problem, random);
  const TensorView& mask = host.views.captures.at(0);
  for (int64_t q = 0; q < 512; ++q) {
    for (int64_t kv = 0; kv < 512; ++kv) {
      static_cast<float*>(mask.data)[q * mask.strides[0] + kv] = kv < 256 ? 0.0f : -INFINITY;
    }
  }
  for (int64_t h = 0; h < problem->kv_heads; ++h) {
    for (int64_t kv = 256; kv < 512; ++kv) {
      *element_of(host.views.k, 0, h, kv, 0) = 0x7fc0;  // NaN
    }
  }
  for (const char* implementation : {"", "cuda_sm80"}) {
    const auto device = cuda::DeviceTensors::copy_of(host.views, 0);
    ASSERT_TRUE(device.ok()) << device.error().message;
    const Result<Attention> attention =
        Attention::compile(*problem, {.device = DeviceKind::kCuda, .implementation = implementation});
    ASSERT_TRUE(attention.ok()) << attention.error().message;
    ASSERT_TRUE(attention->run(device->views()).ok());
    ASSERT_TRUE(device->fetch(host.views).ok());
    for (int64_t q = 0; q < 512; ++q) {
      ASSERT_LT(*element_of(host.views.out, 0, 1, q, 0) & 0x7fff, 0x7f80) << implementation << " row " << q;
    }
  }
}

}  // namespace
}  // namespace flashlift
