#include "flashlift/tensor.h"

#include <gtest/gtest.h>

#include <vector>

namespace flashlift {
namespace {

TEST(Tensor, DenseViewIsRowMajor) {
  std::vector<float> data(24);
  const int64_t shape[] = {2, 3, 4};
  const TensorView view = dense_view(data.data(), DType::kF32, shape);
  EXPECT_EQ(view.element_count(), 24);
  EXPECT_EQ(view.strides[0], 12);
  EXPECT_EQ(view.strides[1], 4);
  EXPECT_EQ(view.strides[2], 1);
  EXPECT_EQ(describe(view), "f32[2,3,4]");
}

TEST(Tensor, TransposedExchangesSizesAndStrides) {
  const int64_t shape[] = {2, 3, 4};
  const TensorView view = transposed(dense_view(nullptr, DType::kBF16, shape), 1, 2);
  EXPECT_EQ(describe(view), "bf16[2,4,3]");
  EXPECT_EQ(view.strides[1], 1);
  EXPECT_EQ(view.strides[2], 4);
}

TEST(Tensor, ScalarHasOneElement) {
  EXPECT_EQ(dense_view(nullptr, DType::kF32, {}).element_count(), 1);
  EXPECT_EQ(describe(dense_view(nullptr, DType::kF32, {})), "f32[]");
}

}  // namespace
}  // namespace flashlift
