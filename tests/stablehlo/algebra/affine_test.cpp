#include "stablehlo/algebra/affine.h"

#include <gtest/gtest.h>

namespace flashlift::stablehlo {
namespace {

const std::vector<int64_t> kSizes = {8, 3, 4};  // of atoms 0, 1 and 2

Affine digits(int major, int minor) {
  return affine_sum(affine_product(affine_atom(major), kSizes[static_cast<size_t>(minor)]), affine_atom(minor));
}

TEST(Affine, TermsThatCancelVanish) {
  const Affine twice = affine_product(affine_atom(1), 2);
  EXPECT_EQ(affine_sum(affine_atom(1), affine_atom(1)), twice);
  EXPECT_TRUE(affine_sum(twice, affine_product(twice, -1)).is_constant());
}

TEST(Affine, Range) {
  const Affine index = affine_sum(affine_product(affine_atom(1), -4), {.constant = 1, .terms = {{2, 2}}});
  const Range range = affine_range(index, kSizes);
  EXPECT_EQ(range.low, 1 - 4 * 2);
  EXPECT_EQ(range.high, 1 + 2 * 3);
}

TEST(Affine, DigitsRunThroughEveryIndexOnce) {
  EXPECT_EQ(digits_of(digits(1, 2), 12, kSizes), (std::vector<int>{1, 2}));
  EXPECT_EQ(digits_of(digits(2, 1), 12, kSizes), (std::vector<int>{2, 1}));
  EXPECT_FALSE(digits_of(digits(1, 2), 24, kSizes)) << "half of the indices are left out";
  EXPECT_FALSE(digits_of(affine_product(affine_atom(1), 2), 6, kSizes)) << "every other index is left out";
}

TEST(Affine, ReshapesJoinAndSplit) {
  const Affine offset = linearize({affine_atom(1), affine_atom(2), affine_atom(0)}, {3, 4, 8});
  const Delinearized joined = delinearize(offset, {12, 8}, kSizes);
  ASSERT_TRUE(joined.indices);
  EXPECT_EQ(*joined.indices, (std::vector<Affine>{digits(1, 2), affine_atom(0)}));
  EXPECT_EQ(delinearize(linearize(*joined.indices, {12, 8}), {3, 4, 8}, kSizes).indices,
            (std::vector<Affine>{affine_atom(1), affine_atom(2), affine_atom(0)}));
}

TEST(Affine, AReshapeAcrossAnAtomAsksForItsSplit) {
  const Delinearized split = delinearize(affine_atom(0), {4, 2}, kSizes);
  EXPECT_FALSE(split.indices);
  EXPECT_EQ(split.request.atom, 0);
  EXPECT_EQ(split.request.inner_size, 2);
}

}  // namespace
}  // namespace flashlift::stablehlo
