#include <gtest/gtest.h>

#include "flashlift/problem.h"

namespace flashlift {
namespace {

struct Call {
  Problem problem = *parse_problem("attn b2 hq4 hkv2 sq3 skv5 d8");
  std::vector<float> memory = std::vector<float>(4096);
  AttentionArguments arguments;

  TensorView tensor(std::vector<int64_t> shape, DType dtype = DType::kF32) {
    return dense_view(memory.data(), dtype, shape);
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
  EXPECT_EQ(wrong_heads.error(), "k: expected f32[2,2,?,8], got f32[2,4,5,8]");
  Call wrong_dtype;
  wrong_dtype.arguments.v = wrong_dtype.tensor({2, 2, 5, 8}, DType::kBF16);
  EXPECT_EQ(wrong_dtype.error(), "v: expected f32[2,2,5,8], got bf16[2,2,5,8]");
  Call wrong_rank;
  wrong_rank.arguments.q = wrong_rank.tensor({3, 8});
  EXPECT_EQ(wrong_rank.error(), "q: expected f32[?,4,?,8], got f32[3,8]");
  Call null_data;
  null_data.arguments.v.data = nullptr;
  EXPECT_EQ(null_data.error(), "v: the data pointer of a f32[2,2,5,8] tensor is null");
  Call overlapping;
  overlapping.arguments.out.strides[1] = 0;
  EXPECT_NE(overlapping.error().find("dimension 1 of an output has stride 0"), std::string::npos);
  Call surplus_lse;
  surplus_lse.arguments.lse = surplus_lse.tensor({2, 4, 3});
  EXPECT_EQ(surplus_lse.error(), "the problem has not an lse output, but the call gives one");
  Call surplus_capture;
  surplus_capture.arguments.captures = {surplus_capture.tensor({1})};
  EXPECT_EQ(surplus_capture.error(), "expected 0 captured tensors, got 1");
}

}  // namespace
}  // namespace flashlift
