#include "problem/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace flashlift::problem {
namespace {

TensorView view_at(uintptr_t address, DType dtype, const std::vector<int64_t>& sizes,
                   const std::vector<int64_t>& strides) {
  TensorView view = dense_view(reinterpret_cast<void*>(address), dtype, sizes);
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

// The first bytes of all elements, one entry for each element.
std::vector<int64_t> addresses(const TensorView& view) {
  std::vector<int64_t> found = {static_cast<int64_t>(reinterpret_cast<uintptr_t>(view.data))};
  for (int d = 0; d < view.rank; ++d) {
    std::vector<int64_t> more;
    for (const int64_t address : found) {
      for (int64_t i = 0; i < view.sizes[d]; ++i) {
        more.push_back(address + i * view.strides[d] * static_cast<int64_t>(size_in_bytes(view.dtype)));
      }
    }
    found = more;
  }
  return found;
}

std::set<int64_t> bytes_of(const TensorView& view) {
  std::set<int64_t> bytes;
  for (const int64_t address : addresses(view)) {
    for (size_t i = 0; i < size_in_bytes(view.dtype); ++i) {
      bytes.insert(address + static_cast<int64_t>(i));
    }
  }
  return bytes;
}

TEST(Overlap, IsWhatCountingBytesSays) {
  std::mt19937 random(1);
  const auto below = [&](int bound) { return static_cast<int64_t>(random() % static_cast<unsigned>(bound)); };
  const DType dtypes[] = {DType::kBool, DType::kBF16, DType::kF32};
  int sharing = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    std::vector<TensorView> views;
    for (int i = 0; i < 2; ++i) {
      std::vector<int64_t> sizes;
      std::vector<int64_t> strides;
      for (int64_t rank = below(4); rank > 0; --rank) {
        sizes.push_back(below(5));
        strides.push_back(below(23) - 9);
      }
      views.push_back(view_at(10000 + static_cast<uintptr_t>(below(80)), dtypes[below(3)], sizes, strides));
    }
    const auto a = bytes_of(views[0]);
    const auto b = bytes_of(views[1]);
    const bool expected = std::any_of(a.begin(), a.end(), [&](int64_t byte) { return b.contains(byte); });
    ASSERT_EQ(share_memory(views[0], views[1]), expected) << trial;
    ASSERT_EQ(share_memory(views[1], views[0]), expected) << trial;
    sharing += expected ? 1 : 0;
    CallTensors tensors;
    tensors.add_input("a", views[0]);
    tensors.add_output("b", views[1]);
    ASSERT_EQ(tensors.verify_apart().ok(), !expected) << trial;
  }
  EXPECT_GT(sharing, 2000);
}

TEST(Overlap, TellsSlicesOfAPackedTensorApart) {
  // q, k and v of [batch, length, 3, heads, depth], as a fused projection returns them: their byte ranges overlap.
  constexpr int64_t kB = 4, kS = 1000, kH = 12, kD = 64;
  const auto slice = [&](int64_t index) {
    return view_at(4096 + static_cast<uintptr_t>(index * kH * kD * 2), DType::kBF16, {kB, kH, kS, kD},
                   {kS * 3 * kH * kD, kD, 3 * kH * kD, 1});
  };
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      EXPECT_EQ(share_memory(slice(i), slice(j)), i == j);
    }
  }
  TensorView long_by_one = slice(0);
  long_by_one.sizes[3] = kD + 1;
  long_by_one.sizes[1] = kH;
  EXPECT_TRUE(share_memory(long_by_one, slice(1)));  // its last head reaches into the next slice
}

TEST(Overlap, EndsWhereStridesHaveNoCommonMeasure) {
  // Here the search has many combinations to try.
  const std::vector<int64_t> sizes(8, 1000);
  const std::vector<int64_t> strides = {1000003, 1000033, 1000037, 1000039, 1000081, 1000099, 1000117, 1000121};
  const TensorView view = view_at(16, DType::kF32, sizes, strides);
  EXPECT_TRUE(share_memory(view, view));
  share_memory(view, view_at(20, DType::kF32, sizes, strides));
  EXPECT_FALSE(share_memory(view, view_at(8, DType::kF32, {1}, {1})));
}

}  // namespace
}  // namespace flashlift::problem
