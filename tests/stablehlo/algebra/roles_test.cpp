#include "stablehlo/algebra/roles.h"

#include <gtest/gtest.h>

namespace flashlift::stablehlo {
namespace {

// Atoms 1 to 4 of sizes 2, 3, 4 and 16; the plane has them in this order.
const std::vector<int64_t> kSizes = {32, 2, 3, 4, 16};

AtomUse use_of(std::vector<int> queries, std::vector<int> keys) {
  AtomUse use{.q_order = queries, .plane = queries};
  for (const int atom : queries) {
    use.in_q |= atom_bit(atom);
  }
  for (const int atom : keys) {
    use.in_k |= atom_bit(atom);
  }
  use.in_v = use.in_k;
  return use;
}

TEST(Roles, WhatOnlyTheQueriesHaveCountsThem) {
  const auto roles = assign_roles(use_of({1, 3, 4}, {1, 3}), kSizes);
  ASSERT_TRUE(roles.ok()) << roles.error().text;
  EXPECT_EQ(roles->query, std::vector<int>{4});
  EXPECT_EQ(extent(roles->batch, kSizes) * extent(roles->kv_head, kSizes), 2 * 4);
  EXPECT_TRUE(roles->group.empty());
}

TEST(Roles, HeadsThatShareKeysAreAGroup) {
  const auto roles = assign_roles(use_of({1, 2, 3, 4}, {1, 2}), kSizes);
  ASSERT_TRUE(roles.ok()) << roles.error().text;
  EXPECT_EQ(roles->query, std::vector<int>{4});
  EXPECT_EQ(roles->group, std::vector<int>{3});
  EXPECT_EQ(extent(roles->heads(), kSizes), extent(roles->kv_head, kSizes) * 4);
}

TEST(Roles, WhatProgramsCompareWithTheKeyCountsQueries) {
  AtomUse use = use_of({1, 2, 3, 4}, {1, 2});
  use.in_programs = atom_bit(3);
  const auto roles = assign_roles(use, kSizes);
  ASSERT_TRUE(roles.ok()) << roles.error().text;
  EXPECT_EQ(roles->query, std::vector<int>{3});
}

TEST(Roles, WhatSinksDifferAlongIsNoBatchAndNoQuery) {
  AtomUse use = use_of({1, 2, 3, 4}, {1, 2, 3});
  EXPECT_EQ(assign_roles(use, kSizes)->kv_head, std::vector<int>{3});
  use.in_sinks = atom_bit(2) | atom_bit(3);
  EXPECT_EQ(assign_roles(use, kSizes)->kv_head, (std::vector<int>{2, 3}));
  EXPECT_EQ(assign_roles(use, kSizes)->batch, std::vector<int>{1});

  AtomUse before = use_of({2, 1, 3}, {1});  // heads before the batch, over keys without heads
  EXPECT_EQ(assign_roles(before, kSizes)->batch, std::vector<int>{2});
  before.in_sinks = atom_bit(2);
  EXPECT_EQ(assign_roles(before, kSizes)->group, std::vector<int>{2});
  EXPECT_TRUE(assign_roles(before, kSizes)->batch.empty());

  AtomUse many_heads = use_of({1, 4, 3}, {1});
  EXPECT_EQ(assign_roles(many_heads, kSizes)->query, std::vector<int>{4});
  many_heads.in_sinks = atom_bit(4);
  EXPECT_EQ(assign_roles(many_heads, kSizes)->query, std::vector<int>{3});
}

// [B, 1, K, G, D] and [B, K, G, 1, D] are single tokens with G heads for each of K; [B, K, 1, S, D] are S queries.
TEST(Roles, ADimensionOfOneMayBeTheQueryOfGroupedHeads) {
  const auto query_of = [](std::vector<int> ones, AtomSet in_programs = 0) {
    AtomUse use = use_of({1, 3, 4}, {1, 3});
    use.q_ones = std::move(ones);
    use.in_programs = in_programs;
    const auto roles = assign_roles(use, kSizes);
    EXPECT_TRUE(roles.ok());
    return roles->query;
  };
  EXPECT_TRUE(query_of({3}).empty());
  EXPECT_TRUE(query_of({-1}).empty());
  EXPECT_TRUE(query_of({4, 1}).empty());
  EXPECT_EQ(query_of({4}), std::vector<int>{4});
  EXPECT_EQ(query_of({3}, atom_bit(4)), std::vector<int>{4}) << "a mask compares it with the key";
}

}  // namespace
}  // namespace flashlift::stablehlo
