#include <gtest/gtest.h>

#include "flashlift/backward.h"
#include "flashlift/problem.h"

namespace flashlift {
namespace {

struct Call {
  Problem problem = *parse_problem("attn b2 hq4 hkv2 sq3 skv5 d8");
  std::vector<float> memory = std::vector<float>(4096);
  size_t used = 0;
  AttentionArguments arguments;

  // A tensor in memory of its own.
  TensorView tensor(std::vector<int64_t> shape, DType dtype = DType::kF32) {
    const TensorView view = dense_view(memory.data() + used, dtype, shape);
    used += static_cast<size_t>(view.element_count());
    return view;
  }
  Call() {
    arguments.q = tensor({2, 4, 3, 8});
    arguments.k = tensor({2, 2, 5, 8});
    arguments.v = tensor({2, 2, 5, 8});
    arguments.out = tensor({2, 4, 3, 8});
  }
  std::string error() const {
    const Status status = verify(problem, arguments);
    return status.ok() ? "" : status.error().message;
  }
};

TEST(VerifyArguments, TakesOtherLengthsAndBatches) {
  Call call;
  EXPECT_EQ(call.error(), "");
  call.arguments.q = call.tensor({1, 4, 7, 8});
  call.arguments.out = call.tensor({1, 4, 7, 8});
  call.arguments.k = call.arguments.v = call.tensor({1, 2, 0, 8});
  EXPECT_EQ(call.error(), "");
}

TEST(VerifyArguments, NamesWhatDoesNotFit) {
  Call wrong_heads;
  wrong_heads.arguments.k = wrong_heads.tensor({2, 4, 5, 8});
  EXPECT_EQ(wrong_heads.error(), "k: expected f32[2,2,?,8], being [batch,kv_heads,kv_len,head_dim], got f32[2,4,5,8]");
  Call wrong_dtype;
  wrong_dtype.arguments.v = wrong_dtype.tensor({2, 2, 5, 8}, DType::kBF16);
  EXPECT_EQ(wrong_dtype.error(), "v: expected f32[2,2,5,8], got bf16[2,2,5,8]");
  Call wrong_rank;
  wrong_rank.arguments.q = wrong_rank.tensor({3, 8});
  EXPECT_EQ(wrong_rank.error(), "q: expected f32[?,4,?,8], being [batch,q_heads,q_len,head_dim], got f32[3,8]");
  Call null_data;
  null_data.arguments.v.data = nullptr;
  EXPECT_EQ(null_data.error(), "v: the data pointer of a f32[2,2,5,8] tensor is null");
  Call overlapping;
  overlapping.arguments.out.strides[1] = 0;
  EXPECT_NE(overlapping.error().find("dimension 1 of an output has stride 0; expected at least"), std::string::npos);
  Call folded;  // rows that begin inside other rows
  folded.arguments.out.strides = {96, 24, 4, 1};
  EXPECT_NE(folded.error().find("dimension 2 of an output has stride 4"), std::string::npos) << folded.error();
  Call residual;
  residual.problem.out_dtype = DType::kBF16;
  residual.problem.want_residual = true;
  residual.arguments.out.dtype = DType::kBF16;
  EXPECT_EQ(residual.error(), "the problem asks for residual, but the call lacks it");
  residual.arguments.residual = residual.arguments.out;
  EXPECT_EQ(residual.error(), "residual: expected i8[2,4,3,8], got bf16[2,4,3,8]");
  residual.arguments.residual = residual.tensor({2, 4, 3, 8}, DType::kI8);
  EXPECT_EQ(residual.error(), "");
  residual.arguments.residual = transposed(residual.tensor({2, 3, 4, 8}, DType::kI8), 1, 2);
  EXPECT_NE(residual.error().find("residual has stride 8 in dimension 1; expected out's, which is 24"),
            std::string::npos)
      << residual.error();
  Call surplus_lse;
  surplus_lse.arguments.lse = surplus_lse.tensor({2, 4, 3});
  EXPECT_EQ(surplus_lse.error(), "the problem has no lse, but the call gives it");
  Call surplus_capture;
  surplus_capture.arguments.captures = {surplus_capture.tensor({1})};
  EXPECT_EQ(surplus_capture.error(), "expected 0 captured tensors, got 1");
  Call missing_capture;
  missing_capture.problem = *parse_problem("attn b2 hq4 hkv2 sq3 skv5 d8 segment_ids");
  EXPECT_EQ(missing_capture.error(), "expected 2 captured tensors (kv_segments, q_segments), got 0");
}

TEST(VerifyArguments, OutputsHaveMemoryOfTheirOwn) {
  const auto error_with = [](const auto& change) {
    Call call;
    call.problem = *parse_problem(
        "attn b2 hq4 hkv2 sq3 skv5 d8 lse sinks=1 "
        "score_mod(bias: f32[5]) { %0 = load bias[kv]; %1 = add score, %0; return %1 }");
    call.arguments.captures = {call.tensor({5})};
    call.arguments.sinks = call.tensor({4, 1});
    call.arguments.lse = call.tensor({2, 4, 3});
    change(call.arguments);
    return call.error();
  };
  EXPECT_EQ(error_with([](AttentionArguments&) {}), "");
  EXPECT_EQ(error_with([](AttentionArguments& a) { a.k = a.v; }), "");
  const std::string advice = ": give an output memory of its own";
  EXPECT_EQ(error_with([](AttentionArguments& a) { a.out.data = a.q.data; }), "out shares memory with q" + advice);
  EXPECT_EQ(error_with([](AttentionArguments& a) { a.out.data = static_cast<float*>(a.k.data) + 7; }),
            "out shares memory with k" + advice);
  EXPECT_EQ(error_with([](AttentionArguments& a) { a.lse->data = a.captures[0].data; }),
            "lse shares memory with captured tensor `bias`" + advice);
  EXPECT_EQ(error_with([](AttentionArguments& a) { a.lse->data = a.sinks->data; }),
            "lse shares memory with sinks" + advice);
  EXPECT_EQ(error_with([](AttentionArguments& a) { a.lse->data = a.out.data; }), "lse shares memory with out" + advice);
}

TEST(VerifyArguments, GradientsHaveMemoryOfTheirOwn) {
  const auto error_with = [](const auto& change) {
    Call call;
    BackwardArguments backward{.forward = call.arguments, .d_out = call.tensor({2, 4, 3, 8})};
    backward.d_q = call.tensor({2, 4, 3, 8});
    backward.d_k = call.tensor({2, 2, 5, 8});
    backward.d_v = call.tensor({2, 2, 5, 8});
    change(backward);
    const Status status = verify(call.problem, backward);
    return status.ok() ? "" : status.error().message;
  };
  EXPECT_EQ(error_with([](BackwardArguments&) {}), "");
  EXPECT_EQ(error_with([](BackwardArguments& b) { b.d_out = b.forward.q; }), "");
  const std::string advice = ": give an output memory of its own";
  EXPECT_EQ(error_with([](BackwardArguments& b) { b.d_q = b.forward.q; }), "d_q shares memory with q" + advice);
  EXPECT_EQ(error_with([](BackwardArguments& b) { b.d_q = b.d_out; }), "d_q shares memory with d_out" + advice);
  EXPECT_EQ(error_with([](BackwardArguments& b) { b.d_k = b.forward.v; }), "d_k shares memory with v" + advice);
  EXPECT_EQ(error_with([](BackwardArguments& b) { b.d_v = b.d_k; }), "d_v shares memory with d_k" + advice);
  EXPECT_EQ(error_with([](BackwardArguments& b) { b.d_q->data = b.forward.out.data; }),
            "d_q shares memory with out" + advice);
}

TEST(VerifyArguments, TakesOutputsOfAnyLayoutThatDoesNotOverlap) {
  Call call;
  call.arguments.out = transposed(call.tensor({2, 3, 4, 8}), 1, 2);
  EXPECT_EQ(call.error(), "");
  call.arguments.out.strides = {1, 2, 8, 24};  // batch innermost
  EXPECT_EQ(call.error(), "");
  call.arguments.out = call.tensor({2, 4, 3, 8});
  call.arguments.out.data = call.memory.data() + 4000;
  call.arguments.out.strides = {-96, -24, -8, -1};
  EXPECT_EQ(call.error(), "");
}

TEST(VerifyProblem, RefusesEmptyRowsThatDoNotExist) {
  Problem problem = *parse_problem("attn h1 s8 d8");
  problem.empty_rows = static_cast<EmptyRows>(3);
  const Status status = verify(problem);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "empty_rows is 3, expected kZero, kUniform or kNan");
}

// Gives each tensor of a call a view that no memory can have.
TEST(VerifyArguments, RefusesViewsThatNoMemoryHas) {
  const auto tensors = [](AttentionArguments& arguments) {
    return std::vector<std::pair<std::string, TensorView*>>{{"q", &arguments.q},
                                                            {"k", &arguments.k},
                                                            {"v", &arguments.v},
                                                            {"out", &arguments.out},
                                                            {"captured tensor `t`", &arguments.captures[0]},
                                                            {"lse", &*arguments.lse},
                                                            {"sinks", &*arguments.sinks}};
  };
  struct Attack {
    const char* message;
    void (*change)(TensorView&);
  };
  const Attack attacks[] = {
      {"has size -1 in dimension 0", [](TensorView& view) { view.sizes[0] = -1; }},
      {"has size -2 in dimension 0", [](TensorView& view) { view.sizes[0] = -2; }},
      {"has size -9223372036854775808 in dimension 0", [](TensorView& view) { view.sizes[0] = INT64_MIN; }},
      {"beyond what 64 bits address", [](TensorView& view) { view.sizes[0] = INT64_MAX; }},
      {"beyond what 64 bits address", [](TensorView& view) { view.sizes[0] = int64_t{1} << 62; }},
      {"beyond what 64 bits address", [](TensorView& view) { view.strides[0] = INT64_MAX; }},
      {"beyond what 64 bits address", [](TensorView& view) { view.strides[0] = INT64_MIN; }},
      {"has 9 dimensions", [](TensorView& view) { view.rank = 9; }},
      {"has -1 dimensions", [](TensorView& view) { view.rank = -1; }},
      {"not a multiple of the 4 bytes", [](TensorView& view) { view.data = static_cast<char*>(view.data) + 1; }},
  };
  const auto problem = parse_problem(
      "attn b2 hq4 hkv2 sq3 skv5 d8 lse sinks=2 score_mod(t: f32[?]) { %0 = load t[kv]; %1 = add score, %0; return %1 "
      "}");
  ASSERT_TRUE(problem.ok());
  Call call;
  call.problem = *problem;
  call.arguments.captures = {call.tensor({5})};
  call.arguments.lse = call.tensor({2, 4, 3});
  call.arguments.sinks = call.tensor({4, 2});
  ASSERT_EQ(call.error(), "");
  const AttentionArguments whole = call.arguments;
  for (size_t i = 0; i < tensors(call.arguments).size(); ++i) {
    for (const Attack& attack : attacks) {
      call.arguments = whole;
      const auto [name, view] = tensors(call.arguments)[i];
      attack.change(*view);
      EXPECT_TRUE(call.error().starts_with(name)) << name << ": " << call.error();
      EXPECT_NE(call.error().find(attack.message), std::string::npos) << name << ": " << call.error();
    }
  }
}

}  // namespace
}  // namespace flashlift
