#include "xla/ffi/call.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace flashlift::xla {
namespace {

Attributes attributes(const std::string& problem) {
  return {{"problem", problem}, {"q_dims", "bshd"}, {"k_dims", "bshd"}, {"v_dims", "bshd"}, {"out_dims", "bshd"}};
}

void expect_create_error(const Attributes& given, ErrorKind kind, std::string_view part) {
  const auto call = AttentionCall::create(given, {});
  ASSERT_FALSE(call.ok());
  EXPECT_EQ(call.error().kind, kind);
  EXPECT_NE(call.error().message.find(part), std::string::npos) << call.error().message;
}

TEST(AttentionCall, RefusesMalformedAttributes) {
  for (const char* name : {"problem", "q_dims", "k_dims", "v_dims", "out_dims"}) {
    Attributes given = attributes("attn h1 s4 d8 f32");
    given.erase(name);
    expect_create_error(given, ErrorKind::kInvalidArgument, std::string("attribute ") + name + " is missing");
  }
  expect_create_error(attributes("attn h1 s4"), ErrorKind::kInvalidArgument, "");
  expect_create_error(attributes("attn h1 s4 d8 f32 mask_mod() { return }"), ErrorKind::kInvalidArgument, "");
  Attributes unknown = attributes("attn h1 s4 d8 f32");
  unknown["blocks"] = "16";
  expect_create_error(unknown, ErrorKind::kInvalidArgument, "unknown attribute blocks");
  Attributes letters = attributes("attn h1 s4 d8 f32");
  letters["v_dims"] = "bthd";
  expect_create_error(letters, ErrorKind::kInvalidArgument, "got 't'");
  Attributes lse = attributes("attn h1 s4 d8 f32");
  lse["lse_dims"] = "bhs";
  expect_create_error(lse, ErrorKind::kInvalidArgument, "does not ask for lse");
  expect_create_error(attributes("attn h1 s4 d8 f32 lse"), ErrorKind::kInvalidArgument, "lse_dims is missing");
  Attributes implementation = attributes("attn h1 s4 d8 f32");
  implementation["implementation"] = "no such thing";
  const auto call = AttentionCall::create(implementation, {});
  ASSERT_FALSE(call.ok());
}

// Two batches, two heads, three queries and keys of depth four; keys beyond length[b] are masked.
class Run : public testing::Test {
 protected:
  static constexpr const char* kProblem =
      "attn b2 h2 s3 d4 f32 lse mask_mod(length: i32[2]) { %0 = load length[b]; %1 = lt kv, %0; return %1 }";

  void SetUp() override {
    Attributes given = attributes(kProblem);
    given["lse_dims"] = "bhs";
    auto created = AttentionCall::create(given, {});
    ASSERT_TRUE(created.ok()) << created.error().message;
    call_ = *std::move(created);
  }

  Status run() { return call_->run(operands_, results_, {}); }
  void expect_error(std::string_view part) {
    const Status status = run();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
    EXPECT_EQ(out_, std::vector<float>(48, -1.0f));  // nothing written
  }

  std::optional<AttentionCall> call_;
  std::vector<float> q_ = std::vector<float>(48, 0.0f), v_ = std::vector<float>(48, 2.0f);
  std::vector<int32_t> length_ = {2, 3};
  std::vector<float> out_ = std::vector<float>(48, -1.0f), lse_ = std::vector<float>(12, -1.0f);
  std::vector<int64_t> dims_ = {2, 3, 2, 4}, length_dims_ = {2}, lse_dims_ = {2, 2, 3}, other_ = {2, 3, 2, 5};
  std::vector<Buffer> operands_ = {{q_.data(), DType::kF32, dims_},
                                   {q_.data(), DType::kF32, dims_},
                                   {v_.data(), DType::kF32, dims_},
                                   {length_.data(), DType::kI32, length_dims_}};
  std::vector<Buffer> results_ = {{out_.data(), DType::kF32, dims_}, {lse_.data(), DType::kF32, lse_dims_}};
};

TEST_F(Run, Computes) {
  const Status status = run();
  ASSERT_TRUE(status.ok()) << status.error().message;
  for (const float value : out_) {
    EXPECT_NEAR(value, 2.0f, 1e-6f);
  }
  for (size_t i = 0; i < lse_.size(); ++i) {
    EXPECT_NEAR(lse_[i], std::log(i < 6 ? 2.0f : 3.0f), 1e-6f);  // all scores are 0, length[b] keys are left
  }
}

TEST_F(Run, RefusesWrongCounts) {
  operands_.pop_back();
  expect_error("expected 4 operands (q, k, v, 1 captured tensor), got 3");
  operands_.push_back({length_.data(), DType::kI32, length_dims_});
  results_.pop_back();
  expect_error("expected 2 results (out, lse), got 1");
}

TEST_F(Run, RefusesWrongElementTypes) {
  operands_[1].dtype = DType::kBF16;
  expect_error("k has element type bf16, but the problem says f32");
  operands_[1].dtype = DType::kF32;
  operands_[3].dtype = DType::kI64;
  expect_error("captured tensor length has element type i64, but the problem says i32");
  operands_[3].dtype = DType::kI32;
  results_[1].dtype = DType::kF64;
  expect_error("lse has element type f64, but the problem says f32");
}

TEST_F(Run, RefusesWrongShapes) {
  operands_[2].dims = other_;
  expect_error("v has shape [2,3,2,5]");
  operands_[2].dims = dims_;
  results_[0].dims = lse_dims_;
  expect_error("out has 3 dimensions");
  results_[0].dims = dims_;
  operands_[3].dims = lse_dims_;
  expect_error("captured tensor length has shape [2,2,3], but the problem says [2]");
}

TEST(AttentionCall, RefusesSinksOfTheWrongShape) {
  const auto call = AttentionCall::create(attributes("attn h2 s1 d1 f32 sinks=3"), {});
  ASSERT_TRUE(call.ok()) << call.error().message;
  std::vector<float> data(6, 0.0f);
  std::vector<float> out(2);
  const std::vector<int64_t> dims = {1, 1, 2, 1};
  const std::vector<int64_t> sink_dims = {3, 2};
  const Buffer tensor{data.data(), DType::kF32, dims};
  const std::vector<Buffer> operands = {tensor, tensor, tensor, {data.data(), DType::kF32, sink_dims}};
  const std::vector<Buffer> results = {{out.data(), DType::kF32, dims}};
  const Status status = call->run(operands, results, {});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message,
            "sinks has shape [3,2], expected [2,3]: query heads by sinks, or [3] for all heads");
}

TEST(AttentionCall, ReadsTheSeedOfDropout) {
  const auto call = AttentionCall::create(attributes("attn h1 s64 d1 f32 dropout=0.5"), {});
  ASSERT_TRUE(call.ok()) << call.error().message;
  std::vector<float> zero(64, 0.0f);
  std::vector<float> one(64, 1.0f);
  const std::vector<int64_t> dims = {1, 64, 1, 1};
  const std::vector<int64_t> seed_dims = {2};
  const auto run = [&](std::vector<uint32_t> seed, DType dtype, std::vector<float>& out) {
    const Buffer plane{zero.data(), DType::kF32, dims};
    const std::vector<Buffer> operands = {
        plane, plane, {one.data(), DType::kF32, dims}, {seed.data(), dtype, seed_dims}};
    return call->run(operands, {{{out.data(), DType::kF32, dims}}}, {});
  };
  std::vector<float> first(64);
  std::vector<float> again(64);
  std::vector<float> other(64);
  ASSERT_TRUE(run({7, 1}, DType::kU32, first).ok());
  ASSERT_TRUE(run({7, 1}, DType::kU32, again).ok());
  ASSERT_TRUE(run({7, 2}, DType::kU32, other).ok());
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
  const Status wrong = run({7, 1}, DType::kI32, other);
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message, "dropout's seed has element type i32, but the problem says u32");
}

TEST(AttentionCall, DropsInAPartWhatItDropsInTheWhole) {
  // Two batches of two heads; then the last head of the last batch alone.
  const auto whole = AttentionCall::create(attributes("attn b2 h2 s64 d1 f32 dropout=0.5"), {});
  const auto part = AttentionCall::create(attributes("attn h1 s64 d1 f32 dropout=0.5"), {});
  ASSERT_TRUE(whole.ok() && part.ok());
  std::vector<float> zero(256, 0.0f);
  std::vector<float> one(256, 1.0f);
  const std::vector<int64_t> whole_dims = {2, 64, 2, 1};
  const std::vector<int64_t> part_dims = {1, 64, 1, 1};
  const auto run = [&](const AttentionCall& call, const std::vector<int64_t>& dims, std::vector<uint32_t> seed,
                       std::vector<float>& out) {
    const Buffer plane{zero.data(), DType::kF32, dims};
    const std::vector<int64_t> seed_dims = {static_cast<int64_t>(seed.size())};
    const std::vector<Buffer> operands = {
        plane, plane, {one.data(), DType::kF32, dims}, {seed.data(), DType::kU32, seed_dims}};
    return call.run(operands, {{{out.data(), DType::kF32, dims}}}, {});
  };
  std::vector<float> all(256);
  std::vector<float> own(64);
  ASSERT_TRUE(run(*whole, whole_dims, {7, 1}, all).ok());
  ASSERT_TRUE(run(*part, part_dims, {7, 1, 1, 1}, own).ok());
  for (size_t q = 0; q < 64; ++q) {
    EXPECT_EQ(own[q], all[128 + 2 * q + 1]) << q;
  }
  const Status wrong = run(*part, part_dims, {7, 1, 1}, own);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("dropout's seed has shape [3], expected [2]"), std::string::npos);
}

// One head, two queries and keys of depth one. All are 0 except the values: each probability is 1/2.
class Backward : public testing::Test {
 protected:
  static constexpr const char* kProblem =
      "attn h1 s2 d1 f32 lse score_mod(bias: f32[2], length: i32[1]) "
      "{ %0 = load bias[kv]; %1 = add score, %0; %2 = load length[b]; %3 = lt kv, %2; "
      "%4 = select %3, %1, %1; return %4 }";

  static Attributes with_gradients(const std::string& gradients) {
    Attributes given = attributes(kProblem);
    given["lse_dims"] = "bhs";
    given["gradients"] = gradients;
    return given;
  }
  static void expect_create_error(const Attributes& given, std::string_view part) {
    const auto call = BackwardCall::create(given, {});
    ASSERT_FALSE(call.ok());
    EXPECT_NE(call.error().message.find(part), std::string::npos) << call.error().message;
  }
  Buffer rows(std::vector<float>& data) { return {data.data(), DType::kF32, dims_}; }

  std::vector<int64_t> dims_ = {1, 2, 1, 1}, lse_dims_ = {1, 1, 2}, bias_dims_ = {2}, length_dims_ = {1};
  std::vector<float> zero_ = {0, 0}, v_ = {1, 3}, out_ = {2, 2}, d_out_ = {1, 0}, d_lse_ = {0, 4};
  std::vector<float> lse_ = {std::log(2.0f), std::log(2.0f)};
  std::vector<int32_t> length_ = {2};
  std::vector<Buffer> operands_ = {rows(zero_),
                                   rows(zero_),
                                   rows(v_),
                                   {zero_.data(), DType::kF32, bias_dims_},
                                   {length_.data(), DType::kI32, length_dims_},
                                   rows(out_),
                                   {lse_.data(), DType::kF32, lse_dims_},
                                   rows(d_out_),
                                   {d_lse_.data(), DType::kF32, lse_dims_}};
  std::vector<float> d_v_ = {-1, -1}, d_bias_ = {-1, -1};
};

TEST_F(Backward, GivesTheGradientsThatAreListed) {
  const auto call = BackwardCall::create(with_gradients("2 3"), {});
  ASSERT_TRUE(call.ok()) << call.error().message;
  const std::vector<Buffer> results = {rows(d_v_), {d_bias_.data(), DType::kF32, bias_dims_}};
  const Status status = call->run(operands_, results, {});
  ASSERT_TRUE(status.ok()) << status.error().message;
  // d_v = p^T d_out; d_bias sums p (v d_out - out d_out + d_lse) over the queries.
  EXPECT_NEAR(d_v_[0], 0.5f, 1e-6f);
  EXPECT_NEAR(d_v_[1], 0.5f, 1e-6f);
  EXPECT_NEAR(d_bias_[0], 0.5f * (1 - 2) + 0.5f * 4, 1e-6f);
  EXPECT_NEAR(d_bias_[1], 0.5f * (3 - 2) + 0.5f * 4, 1e-6f);
}

TEST_F(Backward, CapturedTensorsMayComeInAnotherOrder) {
  Attributes given = with_gradients("2 4");
  for (const char* names : {"bias", "bias bias", "bias length more", "bias other", "bias length length"}) {
    given["captures"] = names;
    expect_create_error(given, "expected each captured tensor of the problem once: bias length");
  }
  given["captures"] = "length bias";
  const auto call = BackwardCall::create(given, {});
  ASSERT_TRUE(call.ok()) << call.error().message;
  std::swap(operands_[3], operands_[4]);
  const std::vector<Buffer> results = {rows(d_v_), {d_bias_.data(), DType::kF32, bias_dims_}};
  const Status status = call->run(operands_, results, {});
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_NEAR(d_bias_[0], 0.5f * (1 - 2) + 0.5f * 4, 1e-6f);
  EXPECT_NEAR(d_bias_[1], 0.5f * (3 - 2) + 0.5f * 4, 1e-6f);
}

TEST_F(Backward, GradientsMayLieInAnotherOrder) {
  Attributes given = with_gradients("2");
  given["d_v_dims"] = "sx";
  given["d_out_dims"] = "dhsb";
  expect_create_error(given, "got 'x'");
  given["d_v_dims"] = "dhsb";
  const auto call = BackwardCall::create(given, {});
  ASSERT_TRUE(call.ok()) << call.error().message;
  const std::vector<int64_t> dims = {1, 1, 2, 1};
  operands_[7].dims = dims;
  const Status status = call->run(operands_, {{{d_v_.data(), DType::kF32, dims}}}, {});
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_NEAR(d_v_[0], 0.5f, 1e-6f);
  EXPECT_FALSE(AttentionCall::create(given, {}).ok());  // only the backward call has these
}

TEST_F(Backward, RefusesMalformedGradients) {
  Attributes none = with_gradients("");
  none.erase("gradients");
  expect_create_error(none, "attribute gradients is missing");
  for (const char* text : {"x", "0,1", "1 0", "0 0", "5", "-1", "0  1"}) {
    expect_create_error(with_gradients(text), "expected positions of the forward call's 5 operands");
  }
  expect_create_error(with_gradients("4"), "operand 4 holds no floats");
  Attributes unnormalized = attributes("attn h1 s2 d1 f32 unnormalized");
  unnormalized["gradients"] = "0";
  expect_create_error(unnormalized, "has no backward");
  EXPECT_FALSE(AttentionCall::create(with_gradients("0"), {}).ok());
}

TEST_F(Backward, RefusesWrongBuffers) {
  const auto call = BackwardCall::create(with_gradients("2"), {});
  ASSERT_TRUE(call.ok()) << call.error().message;
  const auto expect_error = [&](const std::vector<Buffer>& results, std::string_view part) {
    const Status status = call->run(operands_, results, {});
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
    EXPECT_EQ(d_v_, std::vector<float>(2, -1.0f));  // nothing written
  };
  expect_error({}, "expected 1 result (one for each entry of gradients), got 0");
  expect_error({{d_v_.data(), DType::kF32, bias_dims_}}, "the gradient of operand 2");
  expect_error({{d_v_.data(), DType::kF64, dims_}}, "the gradient of operand 2 has element type f64");
  operands_[7].dims = lse_dims_;
  expect_error({rows(d_v_)}, "d_out");
  operands_.pop_back();
  expect_error({rows(d_v_)}, "expected 9 operands (q, k, v, 2 captured tensors, out, lse, d_out, d_lse), got 8");
}

}  // namespace
}  // namespace flashlift::xla
